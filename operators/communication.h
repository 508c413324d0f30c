// What a function of arrays on a mesh sends between places, found from shapes alone.
//
//   const std::vector<Communication> list = comms([&] { loss(net(x)).backward(); });
//   std::cout << to_string(list);               // a line for each collective, and the sums
//
// Nothing runs and no element takes memory: a mesh of CPUs may be larger than the machine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "sluice/ndarray/interpreter.h"

namespace sluice {

/// One collective along one axis of a mesh: all groups of places along it do the same at once.
struct Communication {
  enum class Kind : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all };
  Kind kind = Kind::all_reduce;
  std::string axis;        ///< the mesh's
  int places = 1;          ///< along it
  std::int64_t bytes = 0;  ///< that a place gets from others, at most: of uneven shards the one that gets most
  bool backward = false;   ///< it belongs to a backward pass
  Spec array;              ///< the whole one's
  std::source_location where;
  std::string layer;  ///< the path of the layer that makes the call (engine/layer.h), or ""
  friend bool operator==(const Communication& a, const Communication& b);
};
/// "all_reduce".
std::string name_of(Communication::Kind kind);

/// "all_reduce over tp (2) of (8, 64) f32: 2.0 KiB; gpt.cc:41 in blocks.2, backward".
std::string to_string(const Communication& one);
/// A line for each, and the number and bytes by kind and axis.
std::string to_string(const std::vector<Communication>& list);

/// Keeps what the calls of the thread's program communicate: an interpreter for an InterpreterScope.
class Communications final : public Interpreter {
 public:
  void apply(Call& call, Next next) override;
  void view(const ViewCall& call) override;
  const std::vector<Communication>& list() const { return list_; }

 private:
  std::vector<Communication> list_;
};

}  // namespace sluice
