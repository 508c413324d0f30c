// What an operator costs whose work is next to nothing: our side of bench/small_ops.sh.
#include "peers/small_ops.h"

#include "sluice/sluice.h"

using namespace sluice;

int main(int argc, char** argv) {
  const small_ops::Options options = small_ops::parse(argc, argv);
  Engine engine({.threads = options.threads});
  set_default_engine(&engine);
  {
    NDArray a = ones({16}), c = a;
    const NDArray b = full({16}, 0.5F), w = full({16}, 0.5F).with_grad();
    engine.wait_all();
    small_ops::report(options, [&](int n) {
      if (options.pattern == "plain") {
        for (int i = 0; i < n; ++i) c = a + b;
      } else if (options.pattern == "chain") {
        for (int i = 0; i < n; ++i) c = c + b;
      } else if (options.pattern == "in_place") {
        for (int i = 0; i < n; ++i) a += b;
      } else {
        for (int i = 0; i < n; ++i) c = a + w;
      }
      engine.wait_all();
    });
  }
  set_default_engine(nullptr);
  return 0;
}
