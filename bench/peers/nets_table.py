"""The table of bench/nets.sh: nets_table.py FOLDER MODEL..."""
import glob
import math
import os
import statistics
import sys


def read(folder):
    """Losses at five points (means of the 20 steps around them), the final figure, seconds."""
    losses = [float(line.split(",")[1]) for line in open(os.path.join(folder, "loss.csv")).read().split()[1:]]
    n = len(losses)
    points = [min(n - 1, n * (i + 1) // 5) for i in range(5)]
    values = [statistics.mean(losses[max(0, p - 10):p + 10]) for p in points]
    return values + [float(open(os.path.join(folder, "final")).read())], float(open(os.path.join(folder, "seconds")).read())


far = 0
print("| | 20 % | 40 % | 60 % | 80 % | end | final figure | seconds |\n|---|---|---|---|---|---|---|---|")
for model in sys.argv[2:]:
    sides = {s: [read(f) for f in sorted(glob.glob(os.path.join(sys.argv[1], f"{model}.{s}.*")))] for s in ("sluice", "torch")}
    cells = {s: [[run[0][i] for run in runs] for i in range(6)] for s, runs in sides.items()}
    for s in ("sluice", "torch"):
        numbers = [f"{statistics.mean(c):.4g} ± {statistics.stdev(c):.2g}" for c in cells[s]]
        print(f"| {model}, {s} | " + " | ".join(numbers) + f" | {statistics.median(run[1] for run in sides[s]):.0f} |")
    marks = []
    for ours, theirs in zip(cells["sluice"], cells["torch"]):
        bound = 2 * math.sqrt(statistics.variance(ours) / len(ours) + statistics.variance(theirs) / len(theirs))
        difference = statistics.mean(ours) - statistics.mean(theirs)
        far += abs(difference) > bound
        marks.append(f"{difference:+.2g} of {bound:.2g}" + (" **" if abs(difference) > bound else ""))
    print(f"| difference | " + " | ".join(marks) + " | |")
print(f"{far} of {6 * len(sys.argv[2:])} means differ by more than their bound")
