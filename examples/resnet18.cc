// Trains a ResNet-18 on Fashion-MNIST, or on CIFAR-10.
#include "run.h"

using namespace sluice;

struct ConvNorm {
  nn::Size in, out, kernel, stride = 1;
  nn::Conv2d conv{.in = in, .out = out, .kernel = kernel, .stride = stride, .padding = kernel / 2, .use_bias = false};
  nn::BatchNorm norm{out};
  NDArray operator()(const NDArray& x) const { return norm(conv(x)); }
};

struct Block {
  nn::Size in, out, stride = 1;
  ConvNorm first{in, out, 3, stride}, second{out, out, 3};
  std::optional<ConvNorm> shortcut =
      stride != 1 || in != out ? std::optional(ConvNorm{in, out, 1, stride}) : std::nullopt;
  NDArray operator()(const NDArray& x) const { return relu(second(relu(first(x))) + (shortcut ? (*shortcut)(x) : x)); }
};

struct ResNet18 {
  std::int64_t channels = 1, classes = 10, width = 16;
  ConvNorm stem{channels, width, 3};
  std::vector<Block> blocks = make(width);
  nn::Linear head{8 * width, classes};
  NDArray operator()(NDArray x) const {
    x = relu(stem(x));
    for (const Block& block : blocks) x = block(x);
    return head(mean(x, {2, 3}));
  }
  static std::vector<Block> make(std::int64_t width) {
    std::vector<Block> blocks;
    for (std::int64_t k = 0, in = width; k < 4; in = width << k++) {
      blocks.push_back({in, width << k, k ? 2 : 1});
      blocks.push_back({width << k, width << k});
    }
    return blocks;
  }
};

int main(int argc, char** argv) try {
  std::string data = "/usr/share/datasets/fashion-mnist";
  long epochs = 2, batch = 128, limit = 0;
  RunOptions options("resnet18");
  CLI::App app("Trains a ResNet-18 on Fashion-MNIST, or on CIFAR-10.");
  app.add_option(
      "--data", data,
      "folder with the four IDX files (Debian: dataset-fashion-mnist), or with CIFAR-10's data_batch_1.bin and so on");
  app.add_option("--epochs", epochs, "passes over the images")->check(CLI::Range(1L, 1000L));
  app.add_option("--batch", batch, "images in a step")->check(CLI::Range(2L, 60000L));
  app.add_option("--limit", limit, "use only so many images for training (0: all)")->check(CLI::Range(0L, 60000L));
  options.add_to(app);
  CLI11_PARSE(app, argc, argv);

  const bool coloured = nn::exists(data + "/data_batch_1.bin");
  nn::Split images = coloured ? nn::cifar10(data) : nn::fashion_mnist(data);
  ResNet18 net{.channels = coloured ? 3 : 1};
  const auto with_channels = [](const NDArray& x) { return x.rank() == 3 ? x.unsqueeze(1) : x; };
  if (limit > 0) images.train = {images.train.x.narrow(0, 0, limit), images.train.y.narrow(0, 0, limit)};
  const nn::Map pixels =
      coloured ? nn::pixels_by_channel({0.491, 0.482, 0.447}, {0.247, 0.243, 0.262}) : nn::pixels(0.286, 0.353);
  nn::Loader train(images.train,
                   {.batch = batch,
                    .shuffle = true,
                    .seed = options.seed,
                    .drop_last = true,
                    .x = nn::then(nn::random_crop(coloured ? 4 : 2), nn::then(nn::random_flip(), pixels))});
  nn::Loader test(images.test, {.batch = 500, .x = pixels});
  const long steps = epochs * train.size();
  nn::initialise(net, options.seed, {{"*.conv.weight", nn::kaiming()}});
  nn::Optimizer opt(
      net,
      nn::Sgd{.lr = nn::warmup_cosine(0.1, std::max(1L, steps / 10), steps + 1), .momentum = 0.9, .weight_decay = 5e-4},
      {{[](const nn::Named& p) { return !nn::matrices(p); }, [](nn::Sgd& r) { r.weight_decay = 0; }}});
  RandomStream stream(options.seed);
  Run run(options, opt, steps, {{"net", net}, {"opt", opt}, {"data", train}, {"stream", stream}},
          static_cast<double>(batch));
  while (run.goes_on()) {
    const auto [x, y, first] = train.next();
    const nn::Training on(stream);
    const NDArray loss = cross_entropy(net(with_channels(x)), y);
    loss.backward();
    opt.step();
    run.step(loss);
  }
  if (const int status = run.end({{"net", net}})) return status;
  nn::Accuracy right;
  {
    const nn::Evaluation off;
    for (const auto& [x, y, first] : test) right.add(net(with_channels(x)), y);
  }
  std::printf("test images: %.2f %% right\n", 100 * right.value());
} catch (const std::exception& error) {
  std::fprintf(stderr, "resnet18: %s\n", error.what());
  return 1;
}
