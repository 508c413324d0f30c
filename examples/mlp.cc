// Trains three dense layers on Fashion-MNIST: the shortest whole program.
#include "run.h"

using namespace sluice;

struct Mlp {
  nn::Linear up{784, 256}, middle{256, 256}, down{256, 10};
  NDArray operator()(const NDArray& x) const { return down(relu(middle(relu(up(x))))); }
};

int main(int argc, char** argv) try {
  std::string data = "/usr/share/datasets/fashion-mnist";
  long epochs = 3;
  RunOptions options("mlp");
  CLI::App app("Trains three dense layers on Fashion-MNIST.");
  app.add_option("--data", data, "folder with the four IDX files (Debian: dataset-fashion-mnist)");
  app.add_option("--epochs", epochs, "passes over the images")->check(CLI::Range(1L, 1000L));
  options.add_to(app);
  CLI11_PARSE(app, argc, argv);

  const nn::Split images = nn::fashion_mnist(data);
  nn::Loader train(images.train, {.batch = 128, .shuffle = true, .seed = options.seed, .x = nn::pixels(0.286, 0.353)});
  nn::Loader test(images.test, {.batch = 1000, .x = nn::pixels(0.286, 0.353)});
  Mlp net;
  nn::initialise(net, options.seed);
  nn::Optimizer opt(net, nn::Sgd{.lr = 0.05, .momentum = 0.9});
  RandomStream stream(options.seed);
  Run run(options, opt, epochs * train.size(), {{"net", net}, {"opt", opt}, {"data", train}, {"stream", stream}}, 128);
  while (run.goes_on()) {
    const auto [x, y, first] = train.next();
    const nn::Training on(stream);
    const NDArray loss = cross_entropy(net(x.flatten(1)), y);
    loss.backward();
    opt.step();
    run.step(loss);
  }
  if (const int status = run.end({{"net", net}})) return status;
  nn::Accuracy right;
  const nn::Evaluation off;
  for (const auto& [x, y, first] : test) right.add(net(x.flatten(1)), y);
  std::printf("test images: %.2f %% right\n", 100 * right.value());
} catch (const std::exception& error) {
  std::fprintf(stderr, "mlp: %s\n", error.what());
  return 1;
}
