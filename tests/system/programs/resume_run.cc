// A training run that can be cut at any microbatch and go on in another process, for resume_test.cc:
//   resume_run FROM TO THREADS FILE
// runs microbatches FROM to TO of a run, and goes on from FILE if FROM is not 0. It ends by writing FILE, and prints
// the losses' bits.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sluice/sluice.h"

using namespace sluice;

namespace {

struct Net {
  nn::Conv2d conv{.in = 1, .out = 4, .kernel = 3, .padding = 1};
  nn::BatchNorm norm{4};
  nn::Dropout drop{0.3};
  nn::Linear head{4 * 64, 3};
  NDArray operator()(const NDArray& x) const { return head(drop(relu(norm(conv(x)))).flatten(1)); }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int from = std::atoi(argv[1]), to = std::atoi(argv[2]), threads = std::atoi(argv[3]);
  const std::string file = argv[4];
  Engine engine({.threads = 2 * threads, .logical_cpus = 2});  // one half makes batches
  set_default_engine(&engine);
  {
    RandomStream data(99);
    const nn::Table table{randint({50, 1, 8, 8}, data, 0, 256, DType::u8), randint({50}, data, 0, 3, DType::i64)};
    nn::Loader loader(table, {.batch = 4,
                              .shuffle = true,
                              .seed = 5,
                              .prefetch = 2,
                              .x = nn::then(nn::random_crop(1), nn::then(nn::random_flip(), nn::pixels(0.5, 0.25))),
                              .workers = cpu(1)});
    Net net;
    nn::initialise(net, 1);
    Net average = nn::clone(net);
    nn::Optimizer opt(net, nn::AdamW{.lr = nn::warmup_cosine(0.02, 3, 40)},
                      {{"*.bias", [](nn::AdamW& r) { r.weight_decay = 0; }}});
    RandomStream stream(2);
    nn::Gradients gradients(net);
    int at = 0;
    const nn::Saved saved{{"net", net}, {"gradients", gradients}, {"average", average},
                          {"opt", opt}, {"loader", loader},       {"stream", stream},
                          {"at", at}};
    if (from > 0) nn::load(file, saved);
    if (at != from) return 3;
    for (; at < to; ++at) {
      const auto [x, y, first] = loader.next();
      const nn::Training on(stream);
      const nn::Microbatch microbatch(at % 2);
      const NDArray loss = cross_entropy(net(x), y) / 2;
      loss.backward();
      const float value = loss.item<float>();
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      std::printf("%d %08x\n", at, bits);
      if (at % 2 == 1) {  // a step is two microbatches
        nn::clip_gradients(net, 1.0);
        opt.step();
        nn::blend(average, net, 0.1);
      }
    }
    nn::save(file, saved);
  }
  set_default_engine(nullptr);
}
