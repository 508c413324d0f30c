// Trains a ResNet-18 on Fashion-MNIST.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "loss_picture.h"
#include "sluice/sluice.h"

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
  std::string data = "/usr/share/datasets/fashion-mnist", out = "build/resnet18";
  long epochs = 2, batch = 128, limit = 0;
  std::uint64_t seed = 1;
  ResNet18 net;
  CLI::App app("Trains a ResNet-18 on Fashion-MNIST.");
  app.add_option("--data", data, "folder with the four IDX files (Debian: dataset-fashion-mnist)");
  app.add_option("--epochs", epochs, "passes over the images")->check(CLI::Range(1L, 1000L));
  app.add_option("--batch", batch, "images in a step")->check(CLI::Range(2L, 60000L));
  app.add_option("--limit", limit, "use only so many images for training (0: all)")->check(CLI::Range(0L, 60000L));
  app.add_option("--seed", seed, "of first weights, order and changes of the images");
  app.add_option("--out", out, "folder for the model and the picture; a run that was cut goes on from there");
  for (CLI::Option* option : app.get_options()) option->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::filesystem::create_directories(out);
  const std::string file = out + "/model.safetensors";

  nn::Split images = nn::fashion_mnist(data);
  if (limit > 0) images.train = {images.train.x.narrow(0, 0, limit), images.train.y.narrow(0, 0, limit)};
  const nn::Map pixels = nn::pixels(0.286, 0.353);
  nn::Loader train(images.train, {.batch = batch,
                                  .shuffle = true,
                                  .seed = seed,
                                  .drop_last = true,
                                  .x = nn::then(nn::random_crop(2), nn::then(nn::random_flip(), pixels))});
  nn::Loader test(images.test, {.batch = 500, .x = pixels});
  const long steps = epochs * train.size();
  nn::initialise(net, seed, {{"*.conv.weight", nn::kaiming()}});
  nn::Optimizer opt(
      net,
      nn::Sgd{.lr = nn::warmup_cosine(0.1, std::max(1L, steps / 10), steps + 1), .momentum = 0.9, .weight_decay = 5e-4},
      {{[](const nn::Named& p) { return !nn::matrices(p); }, [](nn::Sgd& r) { r.weight_decay = 0; }}});
  RandomStream stream(seed);
  const nn::Saved all_of_it{{"net", net}, {"opt", opt}, {"data", train}, {"stream", stream}};
  if (nn::exists(file)) {
    nn::load(file, all_of_it);
    std::printf("goes on from step %ld of %s\n", static_cast<long>(opt.steps()), file.c_str());
  }

  LossPicture losses;
  nn::Progress progress("resnet18", steps, {}, opt.steps());
  while (opt.steps() < steps) {
    const auto [x, y, first] = train.next();
    const nn::Training on(stream);
    const NDArray loss = cross_entropy(net(x.unsqueeze(1)), y);
    loss.backward();
    opt.step();
    losses.add(opt.steps(), loss);
    progress.show(opt.steps(), "loss " + std::to_string(losses.recent()).substr(0, 5));
    if (opt.steps() % 200 == 0 || opt.steps() == steps) nn::save(file, all_of_it);
  }
  nn::Accuracy right;
  {
    const nn::Evaluation off;
    for (const auto& [x, y, first] : test) right.add(net(x.unsqueeze(1)), y);
  }
  losses.write(out + "/loss", "resnet18: loss of each step");
  std::printf("test images: %.2f %% right\n%s, %s\n", 100 * right.value(), file.c_str(), (out + "/loss.svg").c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "resnet18: %s\n", error.what());
  return 1;
}
