// Trains three dense layers on Fashion-MNIST: the shortest whole program.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "loss_picture.h"
#include "sluice/sluice.h"

using namespace sluice;

struct Mlp {
  nn::Linear up{784, 256}, middle{256, 256}, down{256, 10};
  NDArray operator()(const NDArray& x) const { return down(relu(middle(relu(up(x))))); }
};

int main(int argc, char** argv) try {
  std::string data = "/usr/share/datasets/fashion-mnist", out = "build/mlp";
  long epochs = 3;
  std::uint64_t seed = 1;
  CLI::App app("Trains three dense layers on Fashion-MNIST.");
  app.add_option("--data", data, "folder with the four IDX files (Debian: dataset-fashion-mnist)");
  app.add_option("--epochs", epochs, "passes over the images")->check(CLI::Range(1L, 1000L));
  app.add_option("--seed", seed, "of first weights and order");
  app.add_option("--out", out, "folder for the model and the picture");
  for (CLI::Option* option : app.get_options()) option->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::filesystem::create_directories(out);

  const nn::Split images = nn::fashion_mnist(data);
  nn::Loader train(images.train, {.batch = 128, .shuffle = true, .seed = seed, .x = nn::pixels(0.286, 0.353)});
  nn::Loader test(images.test, {.batch = 1000, .x = nn::pixels(0.286, 0.353)});
  Mlp net;
  nn::initialise(net, seed);
  nn::Optimizer opt(net, nn::Sgd{.lr = 0.05, .momentum = 0.9});
  RandomStream stream(seed);
  LossPicture losses;
  nn::Progress progress("mlp", epochs * train.size());
  for (long epoch = 0; epoch < epochs; ++epoch) {
    for (const auto& [x, y, first] : train) {
      const nn::Training on(stream);
      const NDArray loss = cross_entropy(net(x.flatten(1)), y);
      loss.backward();
      opt.step();
      losses.add(opt.steps(), loss);
      progress.show(opt.steps(), "loss " + std::to_string(losses.recent()).substr(0, 5));
    }
  }
  nn::Accuracy right;
  const nn::Evaluation off;
  for (const auto& [x, y, first] : test) right.add(net(x.flatten(1)), y);
  nn::save(out + "/model.safetensors", {{"net", net}});
  losses.write(out + "/loss", "mlp: loss of each step");
  std::printf("test images: %.2f %% right\n%s/model.safetensors, %s/loss.svg\n", 100 * right.value(), out.c_str(),
              out.c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "mlp: %s\n", error.what());
  return 1;
}
