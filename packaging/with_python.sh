#!/bin/sh
# Runs a Python program with the newest interpreter that this package was tested on:
#
#     sh packaging/with_python.sh "$(PYTHON)" ARGUMENTS...
#
# PYTHON names one, or is empty to look for them. All that were found follow ARGUMENTS, newest
# first, each after --interpreter. Plain sh, so that an interpreter of any age can be refused.
set -eu

tested="3.13 3.12 3.11"
asked=$1
shift

version() {
	"$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

is_tested() {
	case " $tested " in *" $1 "*) return 0 ;; *) return 1 ;; esac
}

refuse() {
	echo "$1 This package was tested on Python $tested. Install one of those (Debian, Ubuntu:" \
		"python3 and python3-venv; Fedora: python3), or name one: make install PYTHON=python3.12" >&2
	exit 1
}

newest=
if [ -n "$asked" ]; then
	found=$(version "$asked") || refuse "PYTHON=$asked does not run."
	is_tested "$found" || refuse "PYTHON=$asked is Python $found."
	newest=$asked
	set -- "$@" --interpreter "$(command -v "$asked")"
else
	for release in $tested; do
		# Names that are there and do not run, as those of version managers, are passed by.
		if [ "$(version "python$release" || true)" = "$release" ]; then
			newest=${newest:-python$release}
			set -- "$@" --interpreter "$(command -v "python$release")"
		fi
	done
	if [ -z "$newest" ]; then
		found=$(version python3 || true)
		[ -n "$found" ] || refuse "No Python 3 was found."
		is_tested "$found" || refuse "python3 is Python $found."
		newest=python3
		set -- "$@" --interpreter "$(command -v python3)"
	fi
fi
exec "$newest" "$@"
