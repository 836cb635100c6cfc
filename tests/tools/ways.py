#!/usr/bin/env python3
"""The length of three ways through gcomp.h, as TAP: how many functions a call goes through, and of how many chapters.

    python3 tests/tools/ways.py          compares them with the lines "way" of tests/tools/style_limits, which may only shrink
    python3 tests/tools/ways.py show b   prints way b: each function where it is called first, deeper ones further in

Arithmetic and vectors are left out: whoever reads a way knows what min and mul do. ways.c says what the ways are.
A chapter is what stands between one line ">>name - text" and the next."""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
KNOWN = re.compile(r"vectors|base|platform|portable|scalar|the part|what the compilers")  # not counted: how their chapters begin


def chapters_of(path):
    """The chapter of each line, from line 1 on."""
    tag = re.compile(r"[\s/*-]*>>([a-z0-9][a-z0-9 ]*?)( +-|:)( |$)")
    name, names = "", [""]
    with open(path) as file:
        for line in file:
            found = tag.match(line)
            name = found[1] if found else name
            names.append(name)
    return names


def build(folder):
    program = os.path.join(folder, "ways")
    includes = ["-I" + os.path.join(ROOT, place) for place in (".", "examples/adapters")]
    subprocess.run(["gcc", "-std=gnu11", "-O0", "-g", "-w", "-no-pie", "-finstrument-functions", *includes,
                    os.path.join(ROOT, "tests/tools/ways.c"), "-o", program, "-lm", "-pthread"], check=True)
    return program


def places_of(program, addresses, chapters):
    """address -> (function, chapter), or None for what is not counted."""
    lines = subprocess.run(["addr2line", "-f", "-e", program, *addresses], check=True, capture_output=True, text=True).stdout.split("\n")
    places = {}
    for i, address in enumerate(addresses):
        file, _, line = lines[2 * i + 1].split(" ")[0].rpartition(":")
        chapter = chapters[int(line)] if file.endswith("/gcomp.h") else ""
        places[address] = (lines[2 * i], chapter) if chapter and not KNOWN.match(chapter) else None
    return places


def way(program, name, folder, chapters):
    """(depth, function, chapter) of each call, the first time that this chain of callers makes it."""
    path = os.path.join(folder, "calls")
    subprocess.run([program, name, path], check=True)
    with open(path) as file:
        calls = [line.split() for line in file]
    places = places_of(program, sorted({address for _, address in calls}), chapters)
    stack, seen, found = [], set(), []
    for depth, address in calls:
        stack[int(depth):] = [places[address]]
        chain = tuple(place for place in stack if place)
        if places[address] and chain not in seen:
            seen.add(chain)
            found.append((len(chain) - 1, *places[address]))
    return found


def limits():
    with open(os.path.join(ROOT, "tests/tools/style_limits")) as file:
        words = [line.split() for line in file if line.startswith("way ")]
    return {w[1]: (int(w[2]), int(w[3])) for w in words}


def main():
    show = sys.argv[2] if sys.argv[1:2] == ["show"] else ""
    chapters, most = chapters_of(os.path.join(ROOT, "gcomp.h")), limits()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder)
        if not show:
            print("1..%d" % len(most))
        for number, name in enumerate(sorted([show] if show else most), 1):
            calls = way(program, name, folder, chapters)
            if show:
                for depth, function, chapter in calls:
                    print("  " * depth + function + "   >>" + chapter)
            now = len({call[1:] for call in calls}), len({call[2] for call in calls})
            text = "way %s: %d functions of %d chapters" % (name, *now)
            if show:
                print(text)
                continue
            ok = now[0] <= most[name][0] and now[1] <= most[name][1]
            bad += not ok
            print("%s %d - %s, at most %d of %d" % ("ok" if ok else "not ok", number, text, *most[name]))
    return bad != 0


sys.exit(main())
