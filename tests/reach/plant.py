"""Writes the tree that tests/reach.py builds: the repository's files with all faults in them, as switches. By itself it
writes nothing, and says which faults have no place any more, or several."""
import hashlib, re, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|^#[^\n]*|\"(?:\\.|[^\"\\])*\"|(?<![0-9A-Za-z])'(?:\\.|[^'\\])*'", re.M | re.S)


def entries(path):
    """The edits of a list by their entry's first line, each as [file, function, how, words, code]."""
    found, place = {}, []
    for line in (ROOT / path).read_text().splitlines():
        first, _, rest = line.partition(" ")
        if first in ("mutant", "harness"):
            edits = found.setdefault(line, [])
        elif first == "in":
            file, _, function = rest.partition(" ")
            place = [file if "/" in file else "engine/detail/" + file, function]
        elif first == "+":
            edits[-1][4] += rest + " "
        elif first in ("replace", "before", "after"):
            edits.append([*place, first, rest, ""])
    return found


def all_faults():
    """What by_hand.txt has for the explorer's judge alone is left out; entries of faults.txt stand in for its own."""
    by_hand = {name: edits for name, edits in entries("tests/mutants/by_hand.txt").items() if name.startswith("mutant")}
    return {**by_hand, **entries("tests/reach/faults.txt")}


def closing(code, at):
    """Where the bracket closes that opens at `at`."""
    depth = 0
    for i in range(at, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth == 0:
            return i
    raise ValueError("a bracket that is not closed")


def bodies(code, function):
    """Where functions of this name are defined."""
    for match in re.finditer(r"(?<![\w~])" + re.escape(function) + r"\s*\(", code):
        at = closing(code, match.end() - 1) + 1
        while at < len(code) and code[at] not in "{;)}=.?+":
            at = closing(code, at) + 1 if code[at] == "(" else at + 1
        if code[at : at + 1] == "{":
            yield match.start(), closing(code, at)


def edited(text, edit, number):
    """The text with one edit of the fault, as tests/mutants/rewrite.cc makes it."""
    _, function, how, words, new = edit
    code = NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    pattern = r"\s*".join(re.escape(token) for token in re.findall(r"\w+|[^\w\s]", words))
    pattern = re.sub(r"(?<=\w)\\s\*(?=\w)", r"\\s+", pattern)  # two words that were apart stay apart
    pattern = r"(?<!\w)" * words[0].isidentifier() + pattern + r"(?!\w)" * (words[-1].isalnum() or words[-1] == "_")
    parts = bodies(code, function) if function else [(0, len(code))]
    places = [(m.start() + a, m.end() + a) for a, b in parts for m in re.finditer(pattern, code[a:b])]
    if len(places) != 1:
        raise ValueError(f"'{words}' is there {len(places)} times")
    (begin, end), depth = places[0], 0
    new = re.sub(r"\bMUTANT\b", f"::sluice::planted({number})", new.strip())
    new = new.replace("hand::", "std::memory_order_")  # by_hand.txt's name for an order that the explorer keeps
    if how == "replace":
        return text[:begin] + new + "\n" * text.count("\n", begin, end) + text[end:]
    if how == "after":
        while code[end] != ";":
            end = closing(code, end) + 1 if code[end] in "([{" else end + 1
        return text[: end + 1] + " " + new + text[end + 1 :]
    while begin > 0 and (depth > 0 or code[begin - 1] not in ";{}"):
        begin -= 1
        depth += (code[begin] in ")]") - (code[begin] in "([")
    begin += re.match(r"\s*", code[begin:]).end()
    return text[:begin] + new + " " + text[begin:]


def plant(faults, tree):
    """Writes the tree with all faults, but for files that are there already, and returns a name for what it holds."""
    listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, text=True).split("\0")
    files = {name: (ROOT / name).read_bytes() for name in listed if (ROOT / name).is_file()}
    number = 0
    for name, edits in faults.items():
        number += name.startswith("mutant")
        for edit in edits:
            try:
                files[edit[0]] = edited(files[edit[0]].decode(), edit, number).encode()
            except (KeyError, ValueError) as error:
                sys.exit(f"{name}: {edit[0]} {edit[1]}: {error}")
    for name, content in files.items():
        if not (tree / name).exists() or (tree / name).read_bytes() != content:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(content)
    for gone in {str(path.relative_to(tree)) for path in tree.glob("*/**/*.cc")} - files.keys():
        if not gone.startswith("build/"):
            (tree / gone).unlink()
    sources = sorted(item for item in files.items() if not item[0].endswith((".md", ".py")))
    return hashlib.sha256(repr(sources).encode()).hexdigest()


def check():
    """How many faults cannot be planted."""
    bad = 0
    for name, edits in all_faults().items():
        for edit in edits:
            try:
                edited((ROOT / edit[0]).read_text(), edit, 1)
            except (OSError, ValueError) as error:
                bad += 1
                print(f"{name}: {edit[0]} {edit[1]}: {error}")
    return bad


if __name__ == "__main__":
    sys.exit(check() > 0)
