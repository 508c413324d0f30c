// Trains a classifier of sentences on MiniLM: a head on the frozen net, and with --lora changes of low rank inside of
// it. finetune_data.py beside this file makes sentences; docs/files-from-outside.md says where the model is.
#include <cmath>

#include "minilm.h"
#include "run.h"

struct Classifier {
  MiniLm body;
  nn::Linear head;
  NDArray operator()(const NDArray& ids) const { return head(body(ids) * std::sqrt(static_cast<double>(body.width))); }
};

struct Options : RunOptions {
  Options() : RunOptions("finetune") {}
  std::string model = "model.safetensors", data = "finetune.safetensors", vectors{};
  std::int64_t rank = 0, epochs = 3;
  double lr = 3e-3, lora_lr = 1e-3;
};

std::vector<nn::Linear*> layers_of(MiniLm& net) {
  std::vector<nn::Linear*> list;
  for (BertBlock& block : net.blocks) {
    list.insert(list.end(), {&block.attention.qkv, &block.attention.proj, &block.up, &block.down});
  }
  return list;
}

/// Trains what is not frozen, and gives the part of the test's sentences that the net is right about.
double train(Classifier& net, const nn::Split& data, Options options, std::int64_t rank) {
  options.out += rank > 0 ? "/lora" : "/frozen";
  load_minilm(options.model, net.body);
  nn::freeze(net.body, "*");
  const std::vector<nn::Linear*> changed = rank > 0 ? layers_of(net.body) : std::vector<nn::Linear*>{};
  for (nn::Linear* layer : changed) nn::add_lora(*layer, {.rank = rank, .alpha = 2.0 * static_cast<double>(rank)});
  nn::complete(net, options.seed);
  nn::Optimizer opt(net, {{"head.*", nn::AdamW{.lr = options.lr}}, {"*", nn::AdamW{.lr = options.lora_lr}}});
  nn::Loader batches(data.train, {.batch = 32, .shuffle = true, .seed = options.seed});
  nn::Loader test(data.test, {.batch = 128});
  RandomStream stream(options.seed);
  Run run(options, opt, options.epochs * batches.size(),
          {{"net", net}, {"opt", opt}, {"data", batches}, {"stream", stream}}, 32);
  while (run.goes_on()) {
    const auto [x, y, first] = batches.next();
    const nn::Training on(stream);
    const NDArray loss = cross_entropy(net(x), y);
    loss.backward();
    opt.step();
    run.step(loss);
  }
  if (const int status = run.end({{"net", net}})) std::exit(status);
  for (nn::Linear* layer : changed) nn::merge_lora(*layer);
  nn::Accuracy right;
  const nn::Evaluation off;
  for (const auto& [x, y, first] : test) right.add(net(x), y);
  return right.value();
}

int main(int argc, char** argv) try {
  Options options;
  CLI::App app("Trains a classifier of sentences on MiniLM, frozen and with changes of low rank.");
  app.add_option("--model", options.model, "all-MiniLM-L6-v2's model.safetensors");
  app.add_option("--data", options.data, "of finetune_data.py: train.ids, train.labels, test.ids, test.labels");
  app.add_option("--lora", options.rank, "the rank of changes of each matrix; 0: the frozen net alone")
      ->check(CLI::Range(0, 384));
  app.add_option("--epochs", options.epochs, "times through the sentences")->check(CLI::Range(1, 10000));
  app.add_option("--lr", options.lr, "the learning rate of the head");
  app.add_option("--lora-lr", options.lora_lr, "the learning rate of LoRA");
  app.add_option("--vectors", options.vectors, "a file for the vectors of test.ids; nothing is trained then");
  options.add_to(app);
  CLI11_PARSE(app, argc, argv);

  const std::map<std::string, NDArray> arrays = load_arrays(options.data).arrays;
  if (!options.vectors.empty()) {
    const MiniLm net;
    load_minilm(options.model, net);
    const nn::Evaluation off;
    save_arrays(options.vectors, {{"vectors", net(arrays.at("test.ids"))}});
    return 0;
  }
  const nn::Split data{{arrays.at("train.ids"), arrays.at("train.labels")},
                       {arrays.at("test.ids"), arrays.at("test.labels")}};
  const std::int64_t classes = max(data.train.y).item<std::int64_t>() + 1;
  Classifier frozen{{}, {384, classes}}, changed{{}, {384, classes}};
  std::printf("frozen net and a head: right about %.4f of the test\n", train(frozen, data, options, 0));
  if (options.rank == 0) return 0;
  std::printf("LoRA of rank %ld: right about %.4f of the test\n", static_cast<long>(options.rank),
              train(changed, data, options, options.rank));
} catch (const std::exception& error) {
  std::fprintf(stderr, "finetune: %s\n", error.what());
  return 1;
}
