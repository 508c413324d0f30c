// Trains a GPT on the characters of a text, on a mesh of devices: data parallelism over "dp", heads, hidden units and
// the vocabulary cut over "tp", what the optimiser keeps cut over "dp" (ZeRO). What is saved under one mesh goes on
// under another.
#include "run.h"

using namespace sluice;

struct Block {
  nn::Size width, heads;
  double p;
  nn::LayerNorm norm1{width}, norm2{width};
  nn::SelfAttention attention{width, heads, p};
  nn::Linear up{width, 4 * width}, down{4 * width, width};
  nn::Dropout drop{p};
  NDArray operator()(NDArray x) const {
    x = x + attention(norm1(x), {.causal = true});
    return x + drop(down(gelu(up(norm2(x)))));
  }
};

struct Gpt {
  std::int64_t vocabulary = 256, context = 64, layers = 4, heads = 4, width = 128;
  double p = 0.1;
  nn::Embedding token{vocabulary, width}, position{context, width};
  nn::Dropout drop{p};
  std::vector<Block> blocks = nn::repeat(layers, Block{width, heads, p});
  nn::LayerNorm norm{width};
  NDArray operator()(const NDArray& tokens) const {
    NDArray x = drop(token(tokens) + position(arange(tokens.size(-1))));
    for (const Block& block : blocks) x = block(x);
    return token.logits(norm(x));
  }
};

/// Which arrays are cut over "tp". `between` blocks activations are replicated, or cut by positions.
std::vector<nn::AxisLayouts> layouts(const Gpt& net, bool by_positions, int zero) {
  const auto size = net.width / net.heads;
  const Placement between = by_positions ? shard(1) : replicate;
  const std::optional<Placement> in = by_positions ? std::optional(replicate) : std::nullopt;
  return {{.axis = "dp", .zero = zero},
          {"tp",
           {{"*.qkv", {.weight = shard(0).by(3 * size), .bias = shard(0).by(3 * size), .in = in}},
            {"*.proj", {.weight = shard(1).by(size), .out = between}},
            {"*.up", {.weight = shard(0), .bias = shard(0), .in = in}},
            {"*.down", {.weight = shard(1), .out = between}},
            {"token", {.weight = shard(0), .out = between}},
            {"position", {.out = between == replicate ? replicate : shard(0)}},
            {"norm", {.out = replicate}}}}};
}

int main(int argc, char** argv) try {
  std::string text = "/usr/share/common-licenses";
  long steps = 200, batch = 32, microbatches = 1;
  int dp = 2, tp = 2, zero = 0;
  bool by_positions = false, communication = false, explained = false;
  RunOptions options("train_gpt");
  std::int64_t layers = 4, width = 128, heads = 4;
  CLI::App app("Trains a GPT on the characters of a text, on a mesh of devices.");
  app.add_option("--text", text, "a text file, or a folder of them");
  app.add_option("--dp", dp, "parts of the batch, each at a place of its own")->check(CLI::Range(1, 64));
  app.add_option("--tp", tp, "parts of the heads and hidden units")->check(CLI::Range(1, 64));
  app.add_flag("--sequence", by_positions, "cut activations between blocks over tp, by positions");
  app.add_option("--zero", zero,
                 "1: each place of dp keeps a part of the optimiser's arrays; 2: of gradients, 3: of parameters too")
      ->check(CLI::Range(0, 3));
  app.add_option("--microbatches", microbatches, "parts of the batch, one behind the other")
      ->check(CLI::Range(1L, 4096L));
  app.add_option("--layers", layers, "blocks")->check(CLI::Range(1, 1000));
  app.add_option("--width", width, "of activations")->check(CLI::Range(1, 65536));
  app.add_option("--heads", heads, "of attention")->check(CLI::Range(1, 65536));
  app.add_option("--steps", steps, "steps of the optimiser")->check(CLI::Range(1L, 1000000L));
  app.add_option("--batch", batch, "sequences in a step")->check(CLI::Range(1L, 65536L));
  app.add_flag("--comms", communication, "list what a step sends, from shapes alone, and stop");
  app.add_flag("--explain", explained, "list how each array lies, and stop");
  options.add_to(app);
  CLI11_PARSE(app, argc, argv);
  if (batch % microbatches != 0) throw std::runtime_error("--microbatches does not divide --batch");

  Engine engine({.logical_cpus = communication || explained ? 1 : dp * tp});
  set_default_engine(&engine);
  const struct Reset {
    ~Reset() { set_default_engine(nullptr); }
  } reset;
  Gpt net{.layers = layers, .heads = heads, .width = width};
  const Mesh mesh({{"dp", dp}, {"tp", tp}});
  if (explained) {
    std::printf("%s", nn::explain(net, mesh, layouts(net, by_positions, zero)).c_str());
    return 0;
  }
  nn::place(net, mesh, layouts(net, by_positions, zero));
  RandomStream stream(options.seed);
  /// Adds the gradients of a part of the batch to those that are there.
  const auto backward = [&](const NDArray& x, const NDArray& y) {
    const MeshScope scope(mesh);  // what the net makes itself, such as positions, is on the mesh too
    const Placements rows{{"dp", shard(0)}};
    const NDArray logits = net(place(x, mesh, rows)).reshape({-1, net.vocabulary});
    const NDArray loss = cross_entropy(logits, place(y, mesh, rows).flatten(), 1.0 * batch * net.context);
    loss.backward();
    return gathered(loss);
  };
  nn::Optimizer opt(
      net,
      nn::AdamW{
          .lr = nn::warmup_cosine(1e-3, std::max(1L, steps / 12), steps + 1, 1e-4), .beta2 = 0.95, .weight_decay = 0.1},
      {{[](const nn::Named& p) { return !nn::matrices(p); }, [](nn::AdamW& r) { r.weight_decay = 0; }}});
  const auto initialise = [&] {
    nn::initialise(net, options.seed,
                   {{"*.weight", nn::normal(0.02)}, {"*norm*.weight", nn::constant(1)}, {"*.bias", nn::constant(0)}});
  };
  if (communication) {
    const auto list = comms([&] {
      initialise();
      const nn::Training on(stream);
      const NDArray x = empty({batch / microbatches, net.context}, DType::i64);
      for (long m = 0; m < microbatches; ++m) backward(x, x);
      nn::clip_gradients(net, 1.0);
      opt.step();
    });
    std::printf("%s", to_string(list).c_str());
    return 0;
  }
  initialise();
  nn::Windows data(nn::read_tokens(text),
                   {.batch = batch, .length = net.context, .shuffle = true, .seed = options.seed});
  std::printf("train_gpt on %s\n", to_string(mesh).c_str());

  Run run(options, opt, steps, {{"net", net}, {"opt", opt}, {"data", data}, {"stream", stream}},
          static_cast<double>(batch * net.context));
  while (run.goes_on()) {
    const auto [x, y, first] = data.next();
    const nn::Training on(stream);
    const std::int64_t rows = batch / microbatches;
    NDArray loss;
    for (long m = 0; m < microbatches; ++m) {
      const nn::Microbatch part(m);
      const NDArray term = backward(x.narrow(0, m * rows, (m + 1) * rows), y.narrow(0, m * rows, (m + 1) * rows));
      loss = loss.defined() ? loss + term : term;
    }
    const NDArray norm = nn::clip_gradients(net, 1.0);
    opt.step();
    run.step(loss, {{"gradient norm", norm}});
  }
  return run.end({{"net", net}});
} catch (const std::exception& error) {
  std::fprintf(stderr, "train_gpt: %s\n", error.what());
  return 1;
}
