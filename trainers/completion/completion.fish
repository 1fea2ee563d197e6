# Completes `python -m trainers.main` in fish; other python commands as before.
# Made by --completion=fish. Make it anew when there are other flags or strategies.

function __trainers_main_is_called
    string match --quiet --regex -- ' -m trainers\.main( |$)' (commandline -opc | string join ' ')
end

function __trainers_main_words
    printf '%s\n' $argv
end

for command in @COMMANDS@
    complete -c $command -n __trainers_main_is_called -f
@FLAGS@
end
