// Writes what nets of ours compute, for compare.py, which computes the same by PyTorch:
//   compare_nets FOLDER SEED     writes
//   compare_nets FOLDER back     reads FOLDER/back.safetensors, which Python wrote with all numbers doubled
// A file FOLDER/<case>.<number>.npz for each case and setting has the arrays
//   set.<option>, p.<path> (parameters and statistics), x.<name> (inputs), y.<name> (results),
//   g.<path or name> (gradients of sum of all results times c.<name>)
// FOLDER/optim.<rule>.npz the parameters before and after 50 steps, FOLDER/schedule.<name>.npz the rates of 60, and
// FOLDER/mesh.<layout>.npz what on_a_mesh() says. All in f64.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "sluice/sluice.h"

using namespace sluice;

namespace {

class Writer {
 public:
  Writer(std::string folder, std::uint64_t seed) : folder_(std::move(folder)), random_(seed) {}

  std::int64_t number(std::int64_t low, std::int64_t high) {
    return randint({}, random_, low, high + 1).item<std::int64_t>();
  }
  bool coin() { return number(0, 1) == 1; }
  NDArray draw(const Dims& shape) { return normal(shape, random_, 0, 1, DType::f64); }
  RandomStream& random() { return random_; }

  void set(const std::string& name, std::int64_t value) { arrays_["set." + name] = full({}, value, DType::i64); }
  void keep(const std::string& name, const NDArray& x) { arrays_[name] = gathered(x.detach()).copy(); }

  template <class Net>
  void start(const Net& net) {
    // Values beside 0 and 1, so that each parameter shows.
    std::vector<nn::InitRule> rules;
    if (!nn::contents(net).slots.empty()) rules.push_back({"*", nn::uniform(0.1, 0.9)});
    nn::initialise(net, static_cast<std::uint64_t>(number(0, 1 << 30)), rules, {.dtype = DType::f64});
    for (const nn::Named& slot : nn::contents(net).slots) keep("p." + slot.name, slot.state->value);
  }
  /// A result, weighed; inputs that want gradients are in `inputs`.
  template <class Net>
  void finish(const Net& net, const std::map<std::string, NDArray>& inputs,
              const std::map<std::string, NDArray>& results) {
    NDArray loss;
    for (const auto& [name, y] : results) {
      const NDArray c = draw(y.shape());
      keep("c." + name, c);
      keep("y." + name, y);
      loss = loss.defined() ? loss + sum(y * c) : sum(y * c);
    }
    loss.backward();
    for (const auto& [name, x] : inputs) {
      keep("x." + name, x);
      if (x.requires_grad()) keep("g." + name, x.grad());
    }
    for (const nn::Named& slot : nn::contents(net).slots) {
      if (slot.state->kind == nn::Kind::parameter) keep("g." + slot.name, slot.state->value.grad());
      if (slot.state->kind == nn::Kind::statistic) keep("after." + slot.name, slot.state->value);
    }
  }
  void write(const std::string& name) {
    save_npz(folder_ + "/" + name + ".npz", arrays_);
    arrays_.clear();
  }

 private:
  std::string folder_;
  RandomStream random_;
  std::map<std::string, NDArray> arrays_;
};

using Case = void (*)(Writer& w);

/// Nets of one input.
template <class Net>
void one_input(Writer& w, const Net& net, const Dims& shape) {
  w.start(net);
  const NDArray x = w.draw(shape).with_grad();
  const nn::Training on(w.random());
  w.finish(net, {{"x", x}}, {{"y", net(x)}});
}

void linear_layer(Writer& w) {
  const std::int64_t in = w.number(1, 9), out = w.number(1, 9);
  const bool bias = w.coin();
  one_input(w, nn::Linear{in, out, bias}, {w.number(1, 4), w.number(1, 4), in});
}
template <class Net, int axes, bool transposed>
void convolution(Writer& w) {
  const std::int64_t groups = w.number(1, 2), in = groups * w.number(1, 3), out = groups * w.number(1, 3);
  const std::int64_t kernel = w.number(1, 3), stride = w.number(1, 2), padding = w.number(0, kernel - 1),
                     dilation = w.number(1, 2), extra = transposed ? w.number(0, std::max(stride, dilation) - 1) : 0;
  for (const auto& [name, value] : {std::pair{"stride", stride},
                                    {"padding", padding},
                                    {"dilation", dilation},
                                    {"groups", groups},
                                    {"output_padding", extra}}) {
    w.set(name, value);
  }
  Dims shape{w.number(1, 3), in};
  for (int i = 0; i < axes; ++i) shape.push_back(w.number(6, 9));
  if constexpr (transposed) {
    one_input(w,
              Net{.in = in,
                  .out = out,
                  .kernel = kernel,
                  .stride = stride,
                  .padding = padding,
                  .output_padding = extra,
                  .dilation = dilation,
                  .groups = groups,
                  .use_bias = w.coin()},
              shape);
  } else {
    one_input(w,
              Net{.in = in,
                  .out = out,
                  .kernel = kernel,
                  .stride = stride,
                  .padding = padding,
                  .dilation = dilation,
                  .groups = groups,
                  .use_bias = w.coin()},
              shape);
  }
}
void layer_norm_layer(Writer& w) {
  const std::int64_t width = w.number(2, 20);
  one_input(w, nn::LayerNorm{width}, {w.number(1, 4), w.number(1, 5), width});
}
void rms_norm_layer(Writer& w) {
  const std::int64_t width = w.number(2, 20);
  one_input(w, nn::RmsNorm{width}, {w.number(1, 4), w.number(1, 5), width});
}
void group_norm_layer(Writer& w) {
  const std::int64_t groups = w.number(1, 3), channels = groups * w.number(1, 3);
  w.set("groups", groups);
  one_input(w, nn::GroupNorm{groups, channels}, {w.number(1, 3), channels, w.number(2, 5), w.number(2, 5)});
}
void batch_norm_layer(Writer& w) {
  const std::int64_t channels = w.number(1, 5);
  Dims shape{w.number(2, 6), channels};
  for (std::int64_t i = w.number(0, 2); i > 0; --i) shape.push_back(w.number(2, 4));
  one_input(w, nn::BatchNorm{channels}, shape);
}
void embedding_layer(Writer& w) {
  const nn::Embedding net{w.number(2, 9), w.number(1, 6)};
  w.start(net);
  const NDArray tokens = randint({w.number(1, 4), w.number(1, 5)}, w.random(), 0, net.rows);
  w.finish(net, {{"tokens", tokens}}, {{"y", net(tokens)}, {"logits", net.logits(net(tokens))}});
}
void dropout_layer(Writer& w) {
  const nn::Dropout net{0.1 * static_cast<double>(w.number(1, 9))};
  w.start(net);
  const NDArray x = w.draw({w.number(5, 9), w.number(5, 9)}).with_grad();
  const nn::Training on(w.random());
  const NDArray y = net(x);
  w.keep("set.p", full({}, net.p, DType::f64));
  w.keep("x.mask", (y != 0.0).to(DType::f64));  // no element of x is 0
  w.finish(net, {{"x", x}}, {{"y", y}});
}
void attention_layer(Writer& w) {
  const std::int64_t kv_heads = w.number(1, 3), heads = kv_heads * w.number(1, 3), width = heads * 2 * w.number(1, 3);
  const nn::SelfAttention net{.width = width, .heads = heads, .kv_heads = kv_heads, .use_bias = w.coin()};
  w.start(net);
  const NDArray x = w.draw({w.number(1, 3), w.number(2, 6), width}).with_grad();
  const bool causal = w.coin();
  w.set("heads", heads);
  w.set("kv_heads", kv_heads);
  w.set("causal", causal);
  w.finish(net, {{"x", x}}, {{"y", net(x, {.causal = causal})}});
}
void lstm_layer(Writer& w) {
  const std::int64_t n = w.number(1, 4);
  const nn::Lstm net{w.number(1, 5), w.number(1, 5)};
  w.start(net);
  const NDArray x = w.draw({w.number(1, 6), n, net.in}).with_grad(), h = w.draw({n, net.size}).with_grad(),
                c = w.draw({n, net.size}).with_grad();
  const LstmResult r = net(x, {h, c});
  w.finish(net, {{"x", x}, {"h", h}, {"c", c}}, {{"y", r.outputs}, {"h", r.state.hidden}, {"c", r.state.cell}});
}
void gru_layer(Writer& w) {
  const std::int64_t n = w.number(1, 4);
  const nn::Gru net{w.number(1, 5), w.number(1, 5)};
  w.start(net);
  const NDArray x = w.draw({w.number(1, 6), n, net.in}).with_grad(), h = w.draw({n, net.size}).with_grad();
  const GruResult r = net(x, h);
  w.finish(net, {{"x", x}, {"h", h}}, {{"y", r.outputs}, {"h", r.hidden}});
}
void pooling(Writer& w) {
  const std::int64_t kernel = w.number(1, 3), stride = w.number(1, 3), padding = w.number(0, kernel / 2);
  const std::int64_t height = w.number(1, 4), width = w.number(1, 4);
  for (const auto& [name, value] :
       {std::pair{"kernel", kernel}, {"stride", stride}, {"padding", padding}, {"height", height}, {"width", width}}) {
    w.set(name, value);
  }
  struct None {
  } none;
  w.start(none);
  const NDArray x = w.draw({w.number(1, 3), w.number(1, 3), w.number(5, 8), w.number(5, 8)}).with_grad();
  w.finish(none, {{"x", x}},
           {{"max", nn::MaxPool2d{kernel, stride, padding}(x)},
            {"avg", nn::AvgPool2d{kernel, stride, padding}(x)},
            {"adaptive_avg", nn::AdaptiveAvgPool2d{height, width}(x)},
            {"adaptive_max", nn::AdaptiveMaxPool2d{height, width}(x)}});
}

const std::map<std::string, Case>& cases() {
  static const std::map<std::string, Case> list{
      {"linear", linear_layer},
      {"conv1d", convolution<nn::Conv1d, 1, false>},
      {"conv2d", convolution<nn::Conv2d, 2, false>},
      {"conv_transpose1d", convolution<nn::ConvTranspose1d, 1, true>},
      {"conv_transpose2d", convolution<nn::ConvTranspose2d, 2, true>},
      {"layer_norm", layer_norm_layer},
      {"rms_norm", rms_norm_layer},
      {"group_norm", group_norm_layer},
      {"batch_norm", batch_norm_layer},
      {"embedding", embedding_layer},
      {"dropout", dropout_layer},
      {"attention", attention_layer},
      {"lstm", lstm_layer},
      {"gru", gru_layer},
      {"pooling", pooling},
  };
  return list;
}

/// Two groups, a frozen parameter, one without a gradient in steps 3 and 4, a schedule, clipping.
struct Small {
  nn::Parameter weight{{5, 3}, nn::normal(1)}, wide{{3, 6}, nn::normal(1)}, bias{{4}, nn::normal(1)},
      frozen{{2}, nn::normal(1)};
};
template <class Rule>
void optimiser(Writer& w, const std::string& name, Rule rule) {
  for (const bool fused : {true, false}) {
    const Small net;
    w.start(net);
    nn::freeze(net, "frozen");
    nn::Optimizer opt(net, rule, {{"bias", [](Rule& r) { r.weight_decay = 0; }}}, {.fused = fused});
    for (std::int64_t step = 0; step < 50; ++step) {
      for (const nn::Parameter* p : {&net.weight, &net.wide, &net.bias}) {
        if (p == &net.wide && (step == 3 || step == 4)) continue;
        const NDArray g = w.draw(p->shape());
        w.keep("g." + p->path() + "." + std::to_string(step), g);
        p->value().set_grad(g);
      }
      w.keep("norm." + std::to_string(step), nn::clip_gradients(net, 3.0));
      opt.step();
    }
    for (const nn::Named& p : nn::parameters(net)) w.keep("y." + p.name, p.state->value);
    w.write("optim." + name + (fused ? ".fused" : ".composed"));
  }
}

struct Block {
  nn::Size width, heads;
  nn::LayerNorm norm1{width}, norm2{width};
  nn::SelfAttention attention{width, heads};
  nn::Linear up{width, 3 * width}, down{3 * width, width};
  NDArray operator()(NDArray x) const {
    x = x + attention(norm1(x), {.causal = true});
    return x + down(gelu(up(norm2(x))));
  }
};
struct Gpt {
  std::int64_t vocabulary = 23, heads = 5, width = 20;
  nn::Embedding token{vocabulary, width}, position{6, width};
  std::vector<Block> blocks = nn::repeat(2, Block{width, heads});
  nn::LayerNorm norm{width};
  NDArray operator()(const NDArray& tokens) const {
    NDArray x = token(tokens) + position(arange(tokens.size(-1)));
    for (const Block& block : blocks) x = block(x);
    return token.logits(norm(x));
  }
};

/// A transformer on a mesh: heads, hidden units and the vocabulary are cut over "tp", which divides none of them, the
/// batch over "dp". Losses, gradients, norms and weights of some steps, for a program of one device.
void on_a_mesh(Writer& w) {
  constexpr int kSteps = 4;
  for (const auto& [dp, tp, zero] : {std::tuple(2, 2, 0), {2, 2, 3}, {4, 1, 2}, {1, 4, 1}, {3, 1, 0}, {1, 3, 0}}) {
    const Mesh mesh({{"dp", dp}, {"tp", tp}});
    const Gpt net;
    const std::int64_t size = net.width / net.heads;
    nn::place(net, mesh,
              {{.axis = "dp", .zero = zero},
               {"tp",
                {{"*.qkv", {.weight = shard(0).by(3 * size), .bias = shard(0).by(3 * size)}},
                 {"*.proj", {.weight = shard(1).by(size), .out = replicate}},
                 {"*.up", {.weight = shard(0), .bias = shard(0)}},
                 {"*.down", {.weight = shard(1), .out = replicate}},
                 {"token", {.weight = shard(0), .out = replicate}}}}});
    w.start(net);
    // So large an eps, because the gradient of keys' biases is 0 but for rounding, which Adam would make steps of.
    nn::Optimizer opt(net, nn::AdamW{.lr = 0.01, .eps = 1e-4, .weight_decay = 0.1});
    const MeshScope scope(mesh);
    for (int step = 0; step < kSteps; ++step) {
      const auto at = [&](const char* name) { return name + ("." + std::to_string(step)); };
      const NDArray x = randint({5, 6}, w.random(), 0, net.vocabulary),
                    y = where(uniform({5, 6}, w.random()) < 0.3, full({5, 6}, std::int64_t{-1}, DType::i64),
                              randint({5, 6}, w.random(), 0, net.vocabulary));
      const auto laid_out = [&](const NDArray& rows) { return place(gathered(rows), mesh, {{"dp", shard(0)}}); };
      w.keep(at("x.tokens"), x);
      w.keep(at("x.labels"), y);
      const auto count = static_cast<double>(sum((y >= std::int64_t{0}).to(DType::i64)).item<std::int64_t>());
      const NDArray loss = cross_entropy(net(laid_out(x)).reshape({-1, net.vocabulary}), laid_out(y).flatten(),
                                         {.divisor = count, .ignore_index = -1, .label_smoothing = 0.1});
      loss.backward();
      w.keep(at("loss"), whole(loss.detach()));
      for (const nn::Named& p : nn::parameters(net)) w.keep(at(("g." + p.name).c_str()), p.state->value.grad());
      w.keep(at("norm"), nn::clip_gradients(net, 0.5));
      opt.step();
    }
    for (const nn::Named& p : nn::parameters(net)) w.keep("y." + p.name, p.state->value);
    w.write("mesh.dp" + std::to_string(dp) + "tp" + std::to_string(tp) + "zero" + std::to_string(zero));
  }
}

constexpr std::int64_t kRates = 60;

void schedules(Writer& w) {
  for (const auto& [name, schedule] : {std::pair<const char*, nn::Schedule>{"linear", nn::linear(2, 0.5, 40)},
                                       {"cosine", nn::cosine(2, 59, 0.1)},
                                       {"step_decay", nn::step_decay(2, 0.3, 7)},
                                       {"exponential", nn::exponential(2, 0.9)},
                                       {"polynomial", nn::polynomial(2, 0, 40, 1.5)},
                                       {"restarts", nn::restarts(2, 7, 2, 0.1)},
                                       {"restarts_alike", nn::restarts(2, 7)},
                                       {"one_cycle", nn::one_cycle(2, kRates)},
                                       {"one_cycle_other", nn::one_cycle(2, kRates, {0.41, 10, 50})}}) {
    std::vector<double> rates;
    for (std::int64_t step = 0; step < kRates; ++step) rates.push_back(schedule(step));
    w.keep("y.rate", from(rates, {kRates}));
    w.write(std::string("schedule.") + name);
  }
  // Losses that get better ever more seldom.
  for (const bool absolute : {false, true}) {
    nn::Plateau plateau{
        .lr = 2, .factor = 0.5, .patience = 2, .threshold = 0.05, .absolute = absolute, .cooldown = 3, .least = 0.1};
    std::vector<double> rates, losses;
    for (std::int64_t step = 0; step < kRates; ++step) {
      losses.push_back(2 / std::sqrt(static_cast<double>(step + 1)) + 0.1 * w.draw({}).item<double>());
      plateau.report(losses.back());
      rates.push_back(plateau.rate(step));
    }
    w.keep("y.rate", from(rates, {kRates}));
    w.keep("x.loss", from(losses, {kRates}));
    w.write(absolute ? "schedule.plateau_absolute" : "schedule.plateau");
  }
}

struct Saved {
  nn::Linear up{3, 4};
  nn::BatchNorm norm{4};
  std::vector<nn::Lstm> layers = nn::repeat(2, nn::Lstm{4, 4});
};
/// Ours to Python: f32 weights under the names of the net.
void write_file(const std::string& folder) {
  const Saved net;
  nn::initialise(net, 5);
  nn::save(folder + "/net.safetensors", {{"", net}});
}
int check_file(const std::string& folder) {
  const Saved net, back;
  nn::load(folder + "/net.safetensors", {{"", net}});
  nn::load(folder + "/back.safetensors", {{"", back}});
  const auto slots = nn::contents(net).slots, others = nn::contents(back).slots;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (!all(slots[i].state->value * 2 == others[i].state->value).item<bool>()) {
      std::fprintf(stderr, "'%s' came back with other values\n", slots[i].name.c_str());
      return 1;
    }
  }
  std::printf("%zu arrays went to Python and back\n", slots.size());
  return 0;
}

}  // namespace

/// A log of ten steps, of which the last four are made again, otherwise, by a run that goes on from the sixth.
void write_log(const std::string& folder) {
  const auto open = [&](std::int64_t from) {
    auto log = std::make_unique<nn::Log>(folder + "/log.csv", nn::LogOptions{.tensorboard = folder + "/board"});
    log->set_position({{"step", from}});
    return log;
  };
  auto log = open(-1);
  for (int step = 0; step < 10; ++step) log->add(step, {{"loss", full({}, 1.0 / (step + 1))}, {"rate", 0.5 * step}});
  log.reset();
  log = open(5);
  for (int step = 6; step < 8; ++step) log->add(step, {{"loss", 100 * step}});
}

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  ::setenv("SLUICE_LOGICAL_CPUS", "4", 1);  // the places of meshes
  if (std::string(argv[2]) == "back") return check_file(argv[1]);
  write_file(argv[1]);
  write_log(argv[1]);
  Writer w(argv[1], std::stoull(argv[2]));
  for (const auto& [name, run] : cases()) {
    for (int i = 0; i < 10; ++i) {
      run(w);
      w.write(name + "." + std::to_string(i));
    }
  }
  const nn::Schedule lr = nn::warmup_cosine(0.05, 10, 50, 0.01);
  optimiser(w, "sgd", nn::Sgd{.lr = lr, .weight_decay = 0.1});
  optimiser(w, "momentum", nn::Sgd{.lr = lr, .momentum = 0.9, .weight_decay = 0.1});
  optimiser(w, "nesterov", nn::Sgd{.lr = lr, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  optimiser(w, "adam", nn::Adam{.lr = lr, .weight_decay = 0.1});
  optimiser(w, "adamw", nn::AdamW{.lr = lr, .beta2 = 0.95, .weight_decay = 0.1});
  optimiser(w, "rms_prop", nn::RmsProp{.lr = lr, .momentum = 0.5, .weight_decay = 0.1});
  optimiser(w, "adagrad", nn::Adagrad{.lr = lr, .weight_decay = 0.1});
  optimiser(w, "lamb", nn::Lamb{.lr = lr, .weight_decay = 0.1});
  optimiser(w, "adafactor", nn::Adafactor{.lr = nn::warmup_cosine(1, 10, 50, 0.2), .weight_decay = 0.1});
  optimiser(w, "lion", nn::Lion{.lr = lr, .weight_decay = 0.1});
  {
    const Small net;
    w.start(net);
    nn::freeze(net, "frozen");
    nn::Optimizer opt(net, {{"weight|wide", nn::Muon{.lr = lr}}, {"*", nn::Sgd{.lr = lr}}});
    for (std::int64_t step = 0; step < 50; ++step) {
      for (const nn::Parameter* p : {&net.weight, &net.wide, &net.bias}) {
        const NDArray g = w.draw(p->shape());
        w.keep("g." + p->path() + "." + std::to_string(step), g);
        p->value().set_grad(g);
      }
      opt.step();
    }
    for (const nn::Named& p : nn::parameters(net)) w.keep("y." + p.name, p.state->value);
    w.write("optim.muon");
  }
  schedules(w);
  on_a_mesh(w);
} catch (const std::exception& error) {
  std::fprintf(stderr, "compare_nets: %s\n", error.what());
  return 1;
}
