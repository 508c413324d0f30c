// Runs a part of a random session (random_session.h) on the calling thread, and writes down all that it sees: bits of
// values and gradients, texts of errors.
#pragma once

#include <bit>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "random_program_arrays.h"
#include "random_session.h"

namespace sluice::testing {

using Lines = std::vector<std::string>;

/// What a part has seen. Lines of reads, refusals and the end; those of second calls of checkpoints apart.
struct Seen {
  Lines lines, again;
};

/// The elements' bits, or the error that a read throws.
inline std::string bits_of(const NDArray& x) {
  if (!x.defined()) return "none";
  try {
    std::string text;
    for (const float v : x.to_vector<float>()) {
      constexpr const char* digits = "0123456789abcdef";
      const auto bits = std::bit_cast<std::uint32_t>(v);
      for (int shift = 28; shift >= 0; shift -= 4) text += digits[bits >> shift & 15U];
      text += ' ';
    }
    return text;
  } catch (const Error& e) {
    return std::string("poisoned: ") + e.what();
  }
}

class SessionRun {
 public:
  /// With `plain` checkpoints are calls of their functions.
  explicit SessionRun(const Part& part, bool plain = false) : part_(part), plain_(plain), in_(part.program) {}
  /// What a checkpoint finds may be written to later by what depends on its results: then the checkpoint, which the
  /// tape keeps, leads to itself. An array that is a constant leads nowhere.
  ~SessionRun() {
    for (const auto& found : found_) found->clear();
    const TagScope none(0);  // these are no operations of the session
    for (const NDArray& x : values) {
      try {
        push_value({x}, 0);
      } catch (const std::exception&) {  // a leaf, or a part
      }
    }
  }
  SessionRun(const SessionRun&) = delete;
  SessionRun& operator=(const SessionRun&) = delete;

  Seen seen;
  Arrays values, terms;  ///< as they are at the end

  void run() {
    const Program& program = part_.program;
    for (std::size_t i = 0; i < program.leaves.size(); ++i) {
      values.push_back(from(in_.leaves[i], dims(program.leaves[i])).to(DType::f32).with_grad());
    }
    leaves_ = values;
    run(part_.acts, values, terms);
    again_ = true;
    gradients();
  }

 private:
  void line(std::string text) { (again_ && depth_ > 0 ? seen.again : seen.lines).push_back(std::move(text)); }
  /// f, or a line that it was refused.
  template <class F>
  bool tried(const std::string& what, F&& f) {
    const int depth = depth_;
    try {
      f();
      return true;
    } catch (const std::exception& e) {
      depth_ = depth;
      line(what + " threw: " + e.what());
      return false;
    }
  }

  void run(const std::vector<Act>& acts, Arrays& v, Arrays& ts) {
    for (const Act& act : acts) {
      if (act.kind == Act::checkpoint) {
        run_checkpoint(act, v, ts);
      } else if (act.kind == Act::step) {
        run_step(part_.program.steps[act.number], act.number, v, ts);
      } else {
        tried(std::string(kActNames[act.kind]) + " v" + std::to_string(act.value), [&] { trouble(act, v); });
      }
    }
  }

  void run_step(const Step& s, std::size_t number, Arrays& v, Arrays& ts) {
    const bool done = tried("step " + std::to_string(number), [&] {
      if (s.code == Code::term) {
        ts.push_back(sum(v[s.a] * weights_like(v[s.a]).to(DType::f32)));
      } else if (is_view(s.code)) {
        v.push_back(view(s, v[s.a]));
      } else if (is_write(s.code)) {
        write(s, v);
      } else {
        v.push_back(compute(s, v));
      }
    });
    if (!done && makes_value(s.code)) v.push_back(zeros(dims(s.shape)));
  }

  void run_checkpoint(const Act& act, Arrays& v, Arrays& ts) {
    const auto found = std::make_shared<Arrays>(v);
    found_.push_back(found);
    const std::size_t before = v.size();
    auto values_inside = std::make_shared<std::size_t>(0);
    const auto f = [this, &act, found, before, values_inside](const NDArray& x, const NDArray& y) {
      ++depth_;
      Arrays own = *found, own_terms;
      own[act.value] = x, own[act.other] = y;
      run(act.inner, own, own_terms);
      --depth_;
      *values_inside = own.size() - before;
      Arrays results(own.begin() + static_cast<std::ptrdiff_t>(before), own.end());
      results.insert(results.end(), own_terms.begin(), own_terms.end());
      results.push_back(sum(x));  // so that there is one
      return results;
    };
    tried("checkpoint", [&] {
      const Arrays results =
          plain_ ? f(v[act.value], v[act.other]) : sluice::checkpoint(ArrayFunction(f), {v[act.value], v[act.other]});
      const auto middle = results.begin() + static_cast<std::ptrdiff_t>(*values_inside);
      v.insert(v.end(), results.begin(), middle);
      ts.insert(ts.end(), middle, results.end() - 1);
    });
    placeholders(act.inner, before, v);
  }
  /// For the values of a checkpoint that threw.
  void placeholders(const std::vector<Act>& acts, std::size_t before, Arrays& v) {
    std::size_t next = before;
    const auto each = [&](const auto& self, const std::vector<Act>& list) -> void {
      for (const Act& a : list) {
        self(self, a.inner);
        if (a.kind != Act::step || !makes_value(part_.program.steps[a.number].code)) continue;
        if (next++ >= v.size()) v.push_back(zeros(dims(part_.program.steps[a.number].shape)));
      }
    };
    each(each, acts);
  }

  void trouble(const Act& act, Arrays& v) {
    NDArray& x = v[act.value];
    const auto rows = [&] { return from(Sizes{0, 99}, {2}); };
    switch (act.kind) {
      case Act::spoil:
        push_op([](ArrayContext&) { throw std::runtime_error("spoilt"); }, {}, {x}, {.name = "spoil"});
        return;
      case Act::spoil_intact:
        push_op(
            [](ArrayContext& c) {
              c.engine_context().wrote_nothing();
              throw std::runtime_error("nothing written");
            },
            {}, {x}, {.name = "spoil_intact"});
        return;
      case Act::spoil_later:
        push_op([](ArrayContext&,
                   ArrayCompletion done) { done.fail(std::make_exception_ptr(std::runtime_error("answered")), true); },
                {}, {x}, {.name = "spoil_later"});
        return;
      case Act::write_rows:
        x(rows()) = full({}, 0.5, DType::f32);
        return;
      case Act::add_rows:
        x(rows()) += full({}, 0.5, DType::f32);
        return;
      case Act::add_bad:
        x += sum(leaves_[0](rows()));
        return;
      case Act::bad_shapes:
        (void)(x + zeros({7, 5}));
        return;
      case Act::bad_matmul:
        (void)matmul(x, zeros({11, 2}));
        return;
      case Act::bad_slice:
        (void)x.narrow(0, 2, 50);
        return;
      case Act::write_leaf: {
        NDArray leaf = leaves_[act.value % leaves_.size()];
        leaf += 1.0F;
        return;
      }
      case Act::write_overlap: {
        NDArray wide = leaves_[1].unsqueeze(0).broadcast_to({3, 4});
        wide.fill(0.5F);
        return;
      }
      case Act::backward_of_many:
        leaves_[1].backward();
        return;
      case Act::throwing_checkpoint:
        (void)sluice::checkpoint(
            [](const NDArray& a) -> NDArray {
              const NDArray y = sin(a) * a;
              throw std::runtime_error("gave up after " + std::to_string(y.rank()) + " axes");
            },
            x);
        return;
      case Act::recover:
        x.engine().recover(x);
        return;
      case Act::overwrite:
        x.fill(0.25F);
        return;
      case Act::own:
        push_value({x}, 0.75F);
        return;
      case Act::snapshot:
        snapshots_.push_back(x.detach());
        return;
      default:
        line("look v" + std::to_string(act.value) + ": " + bits_of(x));
        return;
    }
  }

  /// All values, and the gradients of what is whole and of what is poisoned.
  void gradients() {
    all("value", values);
    all("snapshot", snapshots_);
    NDArray whole = sum(leaves_[0] * 0.0F), poisoned = whole;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const std::string bits = bits_of(terms[i]);
      line("term " + std::to_string(i) + ": " + bits);
      NDArray& to = bits.starts_with("poisoned") ? poisoned : whole;
      to = to + terms[i];
    }
    Arrays first;
    tried("first", [&] {
      first = grad(whole, leaves_, {.create_graph = true});
      all("first", first);
    });
    // What was recorded is not changed by writes that come later.
    for (const Step& s : part_.program.steps) {
      if (is_write(s.code)) tried("late write", [&] { values[s.a].fill(0.5F); });
    }
    tried("second", [&] {
      NDArray along = sum(leaves_[0] * 0.0F);
      for (std::size_t i = 0; i < first.size(); ++i) {
        const NDArray direction = from(in_.directions[i], leaves_[i].shape()).to(DType::f32);
        if (first[i].defined()) along = along + sum(first[i] * direction);
      }
      all("second", grad(along, leaves_, {.retain = true}));
    });
    tried("of what is poisoned", [&] { all("of what is poisoned", grad(poisoned, leaves_, {.retain = true})); });
    tried("backward", [&] { whole.backward(); });
    for (const NDArray& leaf : leaves_) line("by backward: " + bits_of(leaf.grad()));
    all("value after it", values);
  }
  void all(const char* what, const Arrays& list) {
    for (std::size_t i = 0; i < list.size(); ++i) line(what + (" " + std::to_string(i)) + ": " + bits_of(list[i]));
  }

  const Part& part_;
  const bool plain_;
  const Inputs in_;
  Arrays leaves_, snapshots_;
  std::vector<std::shared_ptr<Arrays>> found_;
  int depth_ = 0;       ///< of checkpoints
  bool again_ = false;  ///< backward has begun
};

}  // namespace sluice::testing
