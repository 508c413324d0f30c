"""Makes up nets of all kinds of fields, nested in each other, and a test of them: make_up_nets.py COUNT SEED OUTPUT

Each kind of field that can hold others stands inside of each other kind at least once. The script knows the paths.
"""
import random
import sys

count, seed, output = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
draw = random.Random(seed)
HOLDERS = ["struct", "vector", "array", "optional", "unique_ptr", "shared_ptr", "variant", "tuple", "pair", "map"]
lines = []
made = 0


def leaf():
    """(type, initialiser, paths, elements) of a field that holds no others."""
    n = draw.randint(1, 5)
    return draw.choice([
        ("nn::Parameter", f"{{{{{n}, 2}}, nn::normal(1)}}", [("", "parameter")]),
        ("nn::Statistic", f"{{{{{n}}}, nn::constant(0.5)}}", [("", "statistic")]),
        ("nn::Constant", f"{{{{{n}}}, nn::constant(2)}}", [("", "constant")]),
        ("nn::Linear", f"{{{n}, 3}}", [("weight", "parameter"), ("bias", "parameter")]),
        ("nn::BatchNorm", f"{{{n}}}", [("weight", "parameter"), ("bias", "parameter"), ("running_mean", "statistic"),
                                       ("running_var", "statistic")]),
        ("nn::Dropout", "{0.5}", []),
        ("std::int64_t", f" = {n}", []),
        ("std::string", f" = \"text{n}\"", []),
        ("std::function<NDArray(const NDArray&)>", " = nullptr", []),
    ])


def join(a, b):
    return a + "." + b if a and b else a or b


def struct(depth, wanted):
    """Writes a struct whose fields are of the wanted holders (a list of chains), or drawn; (name, paths)."""
    global made
    fields, paths = [], []
    chains = list(wanted)
    for i in range(max(len(chains), draw.randint(1, 5))):
        chain = chains[i] if i < len(chains) else ([draw.choice(HOLDERS)] if depth > 0 and draw.random() < 0.4 else [])
        type_, init, inner = field(depth - 1, chain)
        fields.append(f"  {type_} f{i}{init};")
        paths += [(join(f"f{i}", p), kind) for p, kind in inner]
    made += 1
    name = f"S{made}"
    lines.append(f"struct {name} {{\n" + "\n".join(fields) + "\n};")
    return name, paths


def field(depth, chain):
    """A field of the holders in the chain, one inside of the other, around a struct or a leaf."""
    if not chain:
        return leaf()
    holder, rest = chain[0], chain[1:]
    if holder == "struct":
        name, paths = struct(max(depth, 0), [rest] if rest else [])
        return name, "{}", paths
    # What a library type holds is a struct, so that each element has an initialiser.
    name, inner = struct(max(depth, 0), [rest] if rest else [])
    def of(prefix):
        return [(join(prefix, p), kind) for p, kind in inner]
    if holder == "vector":
        n = draw.randint(0, 3)
        return f"std::vector<{name}>", f" = nn::repeat({n}, {name}{{}})", [x for i in range(n) for x in of(str(i))]
    if holder == "array":
        return f"std::array<{name}, 2>", "{}", of("0") + of("1")
    if holder == "optional":
        there = draw.random() < 0.7
        return f"std::optional<{name}>", f" = {name}{{}}" if there else " = std::nullopt", inner if there else []
    if holder in ("unique_ptr", "shared_ptr"):
        make = holder.replace("ptr", "").rstrip("_")
        return f"std::{holder}<{name}>", f" = std::make_{make}<{name}>()", inner
    if holder == "variant":
        return f"std::variant<{name}, int>", f" = {name}{{}}", inner
    if holder == "tuple":
        return f"std::tuple<{name}, int, {name}>", "{}", of("0") + of("2")
    if holder == "pair":
        return f"std::pair<int, {name}>", "{}", of("1")
    lines.append(f"inline std::map<std::string, {name}> map_of_{name}() {{\n  std::map<std::string, {name}> m;\n"
                 f"  m.emplace(\"a\", {name}{{}});\n  m.emplace(\"b\", {name}{{}});\n  return m;\n}}")
    return f"std::map<std::string, {name}>", f" = map_of_{name}()", of("a") + of("b")


pairs = [[a, b] for a in HOLDERS for b in HOLDERS]
draw.shuffle(pairs)
nets = []
for i in range(count):
    share = pairs[i::count] if count <= len(pairs) else ([pairs[i]] if i < len(pairs) else [])
    nets.append(struct(draw.randint(0, 2 if count < 100 else 4), share))

with open(output, "w") as out:
    out.write(f"// {count} nets that make_up_nets.py made up of seed {seed}.\n#include \"made_up_nets.h\"\n\n"
              "namespace sluice {\nnamespace {\n\n" + "\n".join(lines) + "\n\n")
    for name, paths in nets:
        list_ = ", ".join(f"{{\"{p}\", nn::Kind::{kind}}}" for p, kind in paths)
        out.write(f"TEST(MadeUpNets, {name}) {{ test::check_made_up<{name}>({{{list_}}}); }}\n")
    out.write("\n}  // namespace\n}  // namespace sluice\n")
