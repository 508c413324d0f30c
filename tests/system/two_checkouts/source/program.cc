// Prints how an error, a trace and a header name their files.
#include <cstdio>
#include <stdexcept>

#include "sluice/engine/engine.h"
#include "sluice/source/place.h"

int main() {
  sluice::Engine engine;
  const sluice::Variable v = engine.variable("v");
  engine.start_trace();
  engine.push([] { throw std::runtime_error("planted"); }, {sluice::write(v)}, {.name = "op"});
  try {
    engine.wait(v);
  } catch (const sluice::Error& error) {
    std::printf("%s\n", error.what());
  }
  for (const sluice::TraceEvent& e : engine.stop_trace()) std::printf("%s:%u\n", e.file, static_cast<unsigned>(e.line));
  std::printf("%s\n", place());
}
