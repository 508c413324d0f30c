// A program of somebody else's that schedules work of its own, with no arrays.
#include <cstdio>
#include <exception>

#include "sluice/engine/engine.h"

int main() try {
  using namespace sluice;
  Engine engine;
  Var<int> frame(engine.variable("frame"), 6), thumb(engine.variable("thumb"), 0);
  engine.push([=] { *thumb = *frame * 7; }, {read(frame), write(thumb)}, {.on = cpu(0), .name = "resize"});
  engine.wait(thumb);
  std::printf("%d\n", *thumb);
  return *thumb == 42 ? 0 : 1;
} catch (const std::exception& e) {
  std::printf("%s\n", e.what());
  return 2;
}
