// Taskflow's side of bench/engine.sh: `silent_dependent_async` for pushes, and a static graph, run only, for replays.
// Taskflow takes edges rather than reads and writes, so what finds the edges is here and is timed: its users have to
// write it. As that is not safe for two threads, two pushers share no variable.
#include <optional>
#include <taskflow/taskflow.hpp>

#include "engine_patterns.h"

namespace {

using patterns::Kind;
using patterns::Pattern;
using patterns::Shape;

class Taskflow {
 public:
  explicit Taskflow(int threads) : executor_(static_cast<std::size_t>(threads)), variables_(1024) {}

  static bool has(const Pattern& pattern) { return pattern.kind != Kind::pushers || pattern.shape == Shape::none; }

  template <class F>
  void session(const F& f) {
    f();
  }
  template <class Body>
  void none(const Body& body) {
    executor_.silent_async(body);
  }
  template <class Body>
  void read(int v, const Body& body) {
    edges_.clear();
    read_edge(v);
    variables_[static_cast<std::size_t>(v)].readers.push_back(push(body));
  }
  template <class Body>
  void write(int v, const Body& body) {
    update(v, body);
  }
  template <class Body>
  void update(int v, const Body& body) {
    edges_.clear();
    write_edges(v);
    variables_[static_cast<std::size_t>(v)].writer = push(body);
  }
  template <class Body>
  void mixed(int, const patterns::Pick& p, const Body& body) {
    edges_.clear();
    read_edge(p[0]);
    read_edge(p[1]);
    write_edges(p[2]);
    tf::AsyncTask task = push(body);
    variables_[p[0]].readers.push_back(task);
    variables_[p[1]].readers.push_back(task);
    variables_[p[2]].writer = std::move(task);
  }
  void finish() { executor_.wait_for_all(); }
  void finish(int) { finish(); }

  void build(const Pattern& pattern) {
    std::vector<tf::Task> tasks;
    for (const auto& before : patterns::predecessors(pattern)) {
      tasks.push_back(graph_.emplace([] {}));
      for (const int i : before) tasks.back().succeed(tasks[static_cast<std::size_t>(i)]);
    }
  }
  void replay(int times) { executor_.run_n(graph_, static_cast<std::size_t>(times)).wait(); }

 private:
  struct Variable {
    tf::AsyncTask writer;
    std::vector<tf::AsyncTask> readers;
  };

  void read_edge(int v) {
    const Variable& variable = variables_[static_cast<std::size_t>(v)];
    if (!variable.writer.empty()) edges_.push_back(variable.writer);
  }
  void write_edges(int v) {
    Variable& variable = variables_[static_cast<std::size_t>(v)];
    if (variable.readers.empty()) return read_edge(v);
    for (tf::AsyncTask& reader : variable.readers) edges_.push_back(std::move(reader));
    variable.readers.clear();
  }
  template <class Body>
  tf::AsyncTask push(const Body& body) {
    return executor_.silent_dependent_async(body, edges_.begin(), edges_.end());
  }

  tf::Executor executor_;
  tf::Taskflow graph_;
  std::vector<Variable> variables_;
  std::vector<tf::AsyncTask> edges_;
};

}  // namespace

int main(int argc, char** argv) { return patterns::run<Taskflow>(argc, argv); }
