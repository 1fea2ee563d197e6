# Completes `python -m trainers.main` in bash; other python commands as before.
# Made by --completion=bash. Make it anew when there are other flags or strategies.

_trainers_main_flags='@FLAGS@'

# Sets kind and words: what the flag named $1 takes.
_trainers_main_kind() {
  kind='' words=''
  case $1 in
@CASES@
  esac
}

_trainers_main() {
  local before=${COMP_LINE:0:COMP_POINT}
  if ! _trainers_main_is_called; then
    _trainers_main_otherwise "$@"
    return
  fi
  compopt +o bashdefault +o default 2> /dev/null
  # Readline breaks arguments at = and :, so that what is there has to be put together.
  local argument=${before##*[[:space:]]} name= head= value= kind words
  COMPREPLY=()
  if [[ $argument == --*=* ]]; then
    name=${argument%%=*} head=${argument%%=*}= value=${argument#*=}
  elif [[ $argument != -* ]]; then
    local earlier=${before%"$argument"}
    earlier=${earlier%"${earlier##*[![:space:]]}"}
    name=${earlier##*[[:space:]]} value=$argument
    [[ $name == --* && $name != *=* ]] || name=
  fi
  _trainers_main_kind "${name#--}"
  if [[ -n $kind ]]; then
    _trainers_main_values "$head" "$value"
  elif [[ -z $head ]]; then
    COMPREPLY=($(compgen -W "$_trainers_main_flags" -- "$argument"))
  fi
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
    compopt -o nospace 2> /dev/null
  fi
  _trainers_main_trim "$argument"
}

# Whether the words before the cursor are those of this program.
_trainers_main_is_called() {
  local -i i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      -m) [[ ${COMP_WORDS[i + 1]} == trainers.main && i+1 -lt COMP_CWORD ]]; return ;;
      -[WX]) i+=1 ;;
      -*) ;;
      *) return 1 ;;
    esac
  done
  return 1
}

# Completes the value $2 of a flag; $1 is what stands before it.
_trainers_main_values() {
  local head=$1 value=$2 item=$2 earlier= word
  if [[ $kind == *s ]]; then
    # A list: what is there stays, and its last item is completed.
    item=${value##*,} earlier=${value%"${value##*,}"} head+=$earlier
    if [[ $kind == folders && $item == *:* ]]; then
      head+=${item%%:*}: item=${item#*:}
    fi
    compopt -o nospace 2> /dev/null
  fi
  case $kind in
    word | words)
      for word in $words; do
        # None of them twice.
        [[ $word == "$item"* && ",$earlier" != *",$word,"* ]] && COMPREPLY+=("$head$word")
      done ;;
    folder | folders) _trainers_main_paths -d "$head" "$item" ;;
    *) _trainers_main_paths -f "$head" "$item" ;;
  esac
}

# Paths that begin with $3, after $2; $1 is what to look for.
_trainers_main_paths() {
  local path
  [[ $2 == *,* ]] || compopt -o filenames 2> /dev/null
  while IFS= read -r path; do
    if [[ $2 == *,* ]]; then
      [[ -d $path ]] && path+=/
      path=${path// /\\ }
    fi
    COMPREPLY+=("$2$path")
  done < <(compgen "$1" -- "$3")
}

# Takes off what readline takes for words before the one it completes.
_trainers_main_trim() {
  local broken=$1 mark
  for mark in = :; do
    [[ $COMP_WORDBREAKS == *$mark* ]] && broken=${broken##*$mark}
  done
  local before=${1%"$broken"}
  COMPREPLY=("${COMPREPLY[@]#"$before"}")
}

# Does what completed this command before, or would without this file.
_trainers_main_otherwise() {
  local command=${1##*/}
  if [[ -z ${_trainers_main_before[$command]-} ]]; then
    # bash-completion reads what it has for a command when it is first asked.
    local load
    for load in _comp_load __load_completion; do
      declare -F "$load" > /dev/null && { "$load" "$command"; break; }
    done
    _trainers_main_register "$command"
  fi
  local function=${_trainers_main_before[$command]}
  [[ $function == none ]] || "$function" "$@"
}

# Completes a command from now on, and remembers what did so before.
_trainers_main_register() {
  local known
  known=$(complete -p "$1" 2> /dev/null)
  if [[ $known == *' -F '* && $known != *' -F _trainers_main '* ]]; then
    known=${known##* -F }
    _trainers_main_before[$1]=${known%% *}
  elif [[ -n $known ]]; then
    _trainers_main_before[$1]=none
  fi
  complete -o bashdefault -o default -F _trainers_main "$1"
}

declare -gA _trainers_main_before
for _trainers_main_command in @COMMANDS@; do
  _trainers_main_register "$_trainers_main_command"
done
unset _trainers_main_command
