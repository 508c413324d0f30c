"""Programs that must not compile (nets.txt), and what is said: run.py COMPILER INCLUDE_FOLDER CASES"""
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

BEGINNING = """#include "sluice/nn/nets.h"
using namespace sluice;
struct Net { nn::Linear up{2, 3}; NDArray operator()(const NDArray& x) const { return up(x); } };
"""
# What clang says, and GCC's words for it.
IN_OTHER_WORDS = [
    (r"call to (implicitly-)?deleted (copy )?constructor", "use of deleted function"),
]


def run(case):
    title, words, text = case
    # What GCC refuses, clang only warns of: initialisers in another order.
    strict = ["-Werror=reorder-init-list"] if "clang" in sys.argv[1] else []
    command = [sys.argv[1], "-std=c++20", "-fsyntax-only", *strict, "-I" + sys.argv[2], "-xc++", "-"]
    result = subprocess.run(command, input=BEGINNING + text, capture_output=True, text=True, timeout=120)
    if words == "OK":
        return result.returncode == 0 or f"{title}: does not compile:\n{result.stderr[:2000]}"
    if result.returncode == 0:
        return f"{title}: compiles"
    said = result.stderr
    for clang, gcc in IN_OTHER_WORDS:
        said = re.sub(clang, gcc, said)
    return words in said or f"{title}: '{words}' is not among what is said:\n{result.stderr[:2000]}"


cases = [(m[1], m[2].strip(), m[3]) for m in re.finditer(r"^== (.*?): (.*)\n((?:(?!== ).*\n?)*)", open(sys.argv[3]).read(), re.M)]
with ThreadPoolExecutor(2) as pool:
    wrong = [r for r in pool.map(run, cases) if r is not True]
print("\n".join(wrong) or f"{len(cases)} cases")
sys.exit(1 if wrong or len(cases) < 15 else 0)
