#!/bin/sh
# no_printf.sh LIBRARY...: no message prints a double in the locale of the program. std::to_string(double) does, by
# vsnprintf (libstdc++ 12); nothing else of Sluice calls that. engine/number_text.h has what is the same everywhere.
status=0
for library in "$@"; do
  nm -u "$library" >/dev/null 2>&1 || { echo "nm cannot read $library" >&2; exit 1; }
  if nm -uA "$library" 2>/dev/null | grep -w vsnprintf; then status=1; fi
done
exit $status
