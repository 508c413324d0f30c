// oneTBB's side of bench/engine.sh: a flow graph of continue nodes built beforehand, run only. Its threads count the
// calling one in, which works too while it waits.
#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <deque>

#include "engine_patterns.h"

namespace {

using oneapi::tbb::flow::continue_msg;
using patterns::Kind;
using patterns::Pattern;

class FlowGraph {
 public:
  explicit FlowGraph(int threads)
      : limit_(oneapi::tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(threads)),
        arena_(threads) {}

  static bool has(const Pattern& pattern) { return pattern.kind == Kind::replay; }

  template <class F>
  void session(const F& f) {
    arena_.execute([&] {
      graph_.reset();  // the graph's tasks go to the arena in which it is reset
      f();
    });
  }
  void build(const Pattern& pattern) {
    for (const auto& before : patterns::predecessors(pattern)) {
      Node& node = nodes_.emplace_back(graph_, [](const continue_msg&) { return continue_msg(); });
      for (const int i : before) oneapi::tbb::flow::make_edge(nodes_[static_cast<std::size_t>(i)], node);
      if (before.empty()) first_.push_back(&node);
    }
  }
  void replay(int times) {
    for (int i = 0; i < times; ++i) {
      for (Node* node : first_) node->try_put(continue_msg());
      graph_.wait_for_all();
    }
  }

 private:
  using Node = oneapi::tbb::flow::continue_node<continue_msg>;

  oneapi::tbb::global_control limit_;
  oneapi::tbb::task_arena arena_;
  oneapi::tbb::flow::graph graph_;
  std::deque<Node> nodes_;
  std::vector<Node*> first_;
};

}  // namespace

int main(int argc, char** argv) { return patterns::run<FlowGraph>(argc, argv); }
