# Completes `python -m trainers.main` in zsh; other python commands as before.
# Made by --completion=zsh. Make it anew when there are other flags or strategies.

_trainers_main_specs=(
@SPECS@
)

_trainers_main() {
  local -i i
  for ((i = 2; i < CURRENT; i++)); do
    case $words[i] in
      -m)
        if [[ $words[i+1] == trainers.main ]] && ((i + 1 < CURRENT)); then
          shift $i words
          ((CURRENT -= i))
          _arguments -S $_trainers_main_specs
          return
        fi
        break ;;
      -[WX]) ((i++)) ;;
      -*) ;;
      *) break ;;
    esac
  done
  # What completed this command before, or zsh itself has for its name.
  local before=${_trainers_main_before[$service]:-${_postpatcomps[(K)$service]}}
  ${before:-_default} "$@"
}

(($+functions[compdef])) || { autoload -Uz compinit && compinit }
typeset -gA _trainers_main_before
() {
  local command
  for command in @COMMANDS@; do
    if [[ -n $_comps[$command] && $_comps[$command] != _trainers_main ]]; then
      _trainers_main_before[$command]=$_comps[$command]
    fi
    compdef _trainers_main $command
  done
}
