// Trains a recurrent language model on the characters of a text: each batch goes on where the one before ended.
#include "run.h"

using namespace sluice;

struct Model {
  std::int64_t vocabulary = 256, width = 256;
  nn::Embedding embedding{vocabulary, width};
  nn::Lstm lstm{width, width};
  nn::Linear head{width, vocabulary};
  /// Of tokens (batch, steps): logits (batch steps, vocabulary) by batch, and the state after the last step.
  LstmResult operator()(const NDArray& tokens, const LstmState& state) const {
    LstmResult r = lstm(embedding(tokens).swapaxes(0, 1), state);
    return {head(r.outputs.swapaxes(0, 1).reshape({-1, width})), r.state};
  }
};

LstmState cut(const LstmState& state) { return {state.hidden.detach(), state.cell.detach()}; }

std::string sample(const Model& net, int count, RandomStream& stream) {
  const nn::Evaluation off;
  LstmState state = net.lstm.begin(1);
  NDArray next = full({1, 1}, std::int64_t{'\n'}, DType::i64);
  std::string text;
  for (int i = 0; i < count; ++i) {
    const LstmResult r = net(next, state);
    state = r.state;
    next = categorical(r.outputs / 0.8, stream).unsqueeze(1);
    text += static_cast<char>(next.item<int>());
  }
  return text;
}

int main(int argc, char** argv) try {
  std::string text = "/usr/share/common-licenses";
  long steps = 600, batch = 32;
  RunOptions options("lstm");
  Model net;
  CLI::App app("Trains a recurrent language model on the characters of a text.");
  app.add_option("--text", text, "a text file, or a folder of them; the last tenth is held out");
  app.add_option("--steps", steps, "steps of the optimiser")->check(CLI::Range(1L, 1000000L));
  app.add_option("--batch", batch, "sequences in a step")->check(CLI::Range(1L, 1024L));
  options.add_to(app);
  CLI11_PARSE(app, argc, argv);

  const NDArray tokens = nn::read_tokens(text);
  const std::int64_t held_out = tokens.count() - tokens.count() / 10;
  nn::Windows train(tokens.narrow(0, 0, held_out), {.batch = batch, .length = 64, .follow = true});
  nn::Windows test(tokens.narrow(0, held_out, tokens.count()), {.batch = 16, .length = 64, .follow = true});
  nn::initialise(net, options.seed);
  nn::Optimizer opt(net, nn::Adam{.lr = nn::warmup_cosine(3e-3, std::max(1L, steps / 12), steps + 1, 3e-4)});
  RandomStream stream(options.seed);
  LstmState state = net.lstm.begin(batch);
  // Where a run goes on, its state does too: zeros would be another sequence.
  struct Carried {
    nn::Statistic hidden, cell;
  } carried{{{batch, net.width}, nn::constant(0)}, {{batch, net.width}, nn::constant(0)}};
  nn::initialise(carried, options.seed);
  Run run(options, opt, steps, {{"net", net}, {"opt", opt}, {"data", train}, {"stream", stream}, {"state", carried}},
          static_cast<double>(batch));
  if (run.resumed()) state = {carried.hidden.value().copy(), carried.cell.value().copy()};
  while (run.goes_on()) {
    const auto [x, y, first] = train.next();
    const nn::Training on(stream);
    if (first) state = net.lstm.begin(batch);
    const LstmResult r = net(x, cut(state));
    const NDArray loss = cross_entropy(r.outputs, y.flatten());
    loss.backward();
    nn::clip_gradients(net, 1.0);
    opt.step();
    state = r.state;
    carried.hidden = state.hidden.detach();
    carried.cell = state.cell.detach();
    run.step(loss);
  }
  if (const int status = run.end({{"net", net}})) return status;
  nn::Perplexity perplexity;
  {
    const nn::Evaluation off;
    for (const auto& [x, y, first] : test) {
      if (first) state = net.lstm.begin(16);
      const LstmResult r = net(x, state);
      state = r.state;
      perplexity.add(cross_entropy(r.outputs, y.flatten()), static_cast<double>(y.count()));
    }
  }
  std::printf("held-out text: perplexity %.3f a character\n\n%s\n", perplexity.value(),
              sample(net, 400, stream).c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "lstm: %s\n", error.what());
  return 1;
}
