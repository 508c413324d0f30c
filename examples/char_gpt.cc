// Trains a small GPT on the characters of a text, and writes some of its own.
#include "run.h"

using namespace sluice;

struct Block {
  nn::Size width, heads;
  double p;
  nn::LayerNorm norm1{width}, norm2{width};
  nn::SelfAttention attention{width, heads, p};
  nn::Linear up{width, 4 * width}, down{4 * width, width};
  nn::Dropout drop{p};
  NDArray operator()(NDArray x, nn::KvCache* cache = nullptr) const {
    x = x + attention(norm1(x), {.causal = true, .cache = cache});
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
  /// Logits (batch, positions, vocabulary). With caches the tokens go on behind those of the calls before.
  NDArray operator()(const NDArray& tokens, std::vector<nn::KvCache>* caches = nullptr) const {
    const std::int64_t begin = caches ? caches->front().length : 0;
    NDArray x = drop(token(tokens) + position(arange(begin, begin + tokens.size(-1))));
    for (std::size_t i = 0; i < blocks.size(); ++i) x = blocks[i](x, caches ? &(*caches)[i] : nullptr);
    return token.logits(norm(x));
  }
};

NDArray loss_of(const Gpt& net, const NDArray& x, const NDArray& y) {
  return cross_entropy(net(x).reshape({-1, net.vocabulary}), y.flatten());
}

std::string sample(const Gpt& net, int count, RandomStream& stream) {
  const nn::Evaluation off;
  std::vector<nn::KvCache> caches;
  std::string text;
  NDArray next = full({1, 1}, std::int64_t{'\n'}, DType::i64);
  for (int i = 0; i < count; ++i) {
    if (i % net.context == 0) caches = std::vector<nn::KvCache>(net.blocks.size());  // positions end there
    next = categorical(net(next, &caches)(all, -1) / 0.8, stream).unsqueeze(1);
    text += static_cast<char>(next.item<int>());
  }
  return text;
}

int main(int argc, char** argv) try {
  std::string text = "/usr/share/common-licenses";
  long steps = 600, batch = 32;
  RunOptions options("char_gpt");
  Gpt net;
  CLI::App app("Trains a small GPT on the characters of a text, and writes some of its own.");
  app.add_option("--text", text, "a text file, or a folder of them; the last tenth is held out");
  app.add_option("--steps", steps, "steps of the optimiser")->check(CLI::Range(1L, 1000000L));
  app.add_option("--batch", batch, "sequences in a step")->check(CLI::Range(1L, 4096L));
  options.add_to(app);
  CLI11_PARSE(app, argc, argv);

  const NDArray tokens = nn::read_tokens(text);
  const std::int64_t held_out = tokens.count() - tokens.count() / 10;
  nn::Windows train(tokens.narrow(0, 0, held_out),
                    {.batch = batch, .length = net.context, .shuffle = true, .seed = options.seed});
  nn::Windows test(tokens.narrow(0, held_out, tokens.count()), {.batch = 64, .length = net.context});
  nn::initialise(net, options.seed,
                 {{"*.weight", nn::normal(0.02)}, {"*norm*.weight", nn::constant(1)}, {"*.bias", nn::constant(0)}});
  nn::Optimizer opt(
      net,
      nn::AdamW{
          .lr = nn::warmup_cosine(1e-3, std::max(1L, steps / 12), steps + 1, 1e-4), .beta2 = 0.95, .weight_decay = 0.1},
      {{[](const nn::Named& p) { return !nn::matrices(p); }, [](nn::AdamW& r) { r.weight_decay = 0; }}});
  RandomStream stream(options.seed);
  Run run(options, opt, steps, {{"net", net}, {"opt", opt}, {"data", train}, {"stream", stream}},
          static_cast<double>(batch));
  while (run.goes_on()) {
    const auto [x, y, first] = train.next();
    const nn::Training on(stream);
    const NDArray loss = loss_of(net, x, y);
    loss.backward();
    const NDArray norm = nn::clip_gradients(net, 1.0);
    opt.step();
    run.step(loss, {{"gradient norm", norm}});
  }
  if (const int status = run.end({{"net", net}})) return status;
  nn::Perplexity perplexity;
  {
    const nn::Evaluation off;
    for (const auto& [x, y, first] : test) perplexity.add(loss_of(net, x, y), static_cast<double>(y.count()));
  }
  std::printf("held-out text: perplexity %.3f a character\n\n%s\n", perplexity.value(),
              sample(net, 400, stream).c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "char_gpt: %s\n", error.what());
  return 1;
}
