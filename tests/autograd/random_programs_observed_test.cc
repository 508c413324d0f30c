// Random programs under interpreters, under notes, and on arrays of an owner: the bits are those of the program alone,
// but that a view of an owner's array adds up what its own uses give (owner.h): there gradients agree to rounding.
// SLUICE_DEEP=1 runs 10,000 of them; SLUICE_PROGRAM=n runs the n-th alone, and prints it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "random_program_outcome.h"
#include "sluice/ndarray/operation_record.h"
#include "sluice/ndarray/owner.h"
#include "sluice/operators/infer.h"

namespace sluice::testing {
namespace {

std::vector<const NDArray*> pointers(const std::vector<NDArray>& list) {
  std::vector<const NDArray*> result;
  for (const NDArray& x : list) result.push_back(&x);
  return result;
}

void near(const Doubles& got, const Doubles& wanted, const char* what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  double most = 1;
  for (double x : wanted) most = std::max(most, std::abs(x));
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-12 * most) << what << ' ' << i;
}

/// Makes each call and each view once more, of twins: a twin must always have the elements of its array. What a program
/// or a gradient writes through a window of memory no twin would see: such arrays get fresh twins for each call.
class Twins final : public sluice::Interpreter {
 public:
  void apply(Call& call, Next next) override {
    if (call.name() == "transfer") return next(call);  // the program reads
    std::vector<NDArray> inputs, targets;
    {
      const NoGrad scope;
      for (const NDArray* x : call.inputs()) inputs.push_back(twin_of(*x));
      for (const NDArray& y : call.targets()) targets.push_back(twin_of(y));
    }
    next(call);
    const NoGrad scope;
    const Operator& row = row_of(call);
    if (!targets.empty()) {
      apply_into(row, pointers(inputs), call.attributes(),
                 {.where = call.where(), .into = targets, .updates = call.updates()});
      return;
    }
    const std::vector<NDArray> results =
        apply_all(row, pointers(inputs), call.attributes(), {.where = call.where(), .on = call.specs()[0].device});
    for (std::size_t i = 0; i < results.size(); ++i) set(call.results()[i], results[i]);
  }
  void view(const ViewCall& call) override {
    const NoGrad scope;
    if (call.kind() != ViewKind::window) return set(call.result(), call.of(twin_of(call.input())));
    const Array* const array = call.input().array().get();
    std::erase_if(pairs_, [&](const auto& p) { return array_of(p) == array; });
    windowed_.insert_or_assign(array, call.input());
  }
  std::size_t seen = 0;

 private:
  using Key = std::tuple<const Array*, std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>>;
  struct Pair {
    NDArray array;  ///< kept, so that no other array has its place
    NDArray twin;
  };
  static Key key(const NDArray& x) {
    return {
        x.array().get(), x.offset(), {x.shape().begin(), x.shape().end()}, {x.strides().begin(), x.strides().end()}};
  }
  static const Array* array_of(const std::pair<const Key, Pair>& p) { return std::get<0>(p.first); }
  void set(const NDArray& x, const NDArray& twin) {
    check(x, twin);
    if (windowed_.count(x.array().get()) == 0) pairs_.insert_or_assign(key(x), Pair{x, twin});
  }
  NDArray twin_of(const NDArray& x) {
    const auto at = pairs_.find(key(x));
    if (at != pairs_.end()) {
      check(x, at->second.twin);
      return at->second.twin;
    }
    const NDArray twin = x.detach().copy();
    const Array* const array = x.array().get();  // made by what is no call, such as detach()
    const bool first = std::none_of(pairs_.begin(), pairs_.end(), [&](const auto& p) { return array_of(p) == array; });
    if (first) set(x, twin);
    return twin;
  }
  void check(const NDArray& x, const NDArray& twin) {
    ++seen;
    if (x.to_bytes() == twin.to_bytes()) return;
    // A fresh twin of a flipped view lies otherwise, and its sums are added in another order.
    if (x.dtype() == DType::f64) return near(x.to_vector<double>(), twin.to_vector<double>(), "a twin");
    EXPECT_EQ(x.to_bytes(), twin.to_bytes());
  }
  std::map<Key, Pair> pairs_;
  std::map<const Array*, NDArray> windowed_;  ///< kept, for the same reason
};

/// An owner of one plain array, which has every view and every call of it.
class Wrapped final : public Owner {
 public:
  explicit Wrapped(NDArray inside) : inside_(std::move(inside)) {}
  static NDArray made(const NDArray& plain) { return owned_array(plain.spec(), Ref<Owner>(new Wrapped(plain))); }
  /// A plain array stays what it is.
  static NDArray inside(const NDArray& x) {
    const Ref<Owner> owner = owner_of(x);
    return owner ? static_cast<const Wrapped&>(*owner).inside_ : x;
  }
  static Doubles read(const NDArray& x) { return inside(x).to_vector<double>(); }

  void apply(Call& call) override {
    const Operator& row = row_of(call);
    std::vector<NDArray> inputs, targets;
    for (const NDArray* x : call.inputs()) inputs.push_back(inside(*x));
    for (const NDArray& y : call.targets()) targets.push_back(inside(y));
    if (!targets.empty()) {
      apply_into(row, pointers(inputs), call.attributes(),
                 {.where = call.where(), .into = targets, .updates = call.updates()});
      return call.answer({call.targets().begin(), call.targets().end()});
    }
    std::vector<NDArray> results;
    for (const NDArray& y :
         apply_all(row, pointers(inputs), call.attributes(), {.where = call.where(), .on = call.specs()[0].device})) {
      results.push_back(made(y));
    }
    call.answer(std::move(results));
  }
  void view(ViewCall& call) override { call.answer(made(call.of(inside_))); }
  Ref<Owner> snapshot() const override { return Ref<Owner>(new Wrapped(inside_.detach())); }
  NDArray constant(const Spec& spec, const Scalar& value, const std::source_location& where) const override {
    const DeviceScope scope(spec.device);
    return made(full(spec.shape, value, spec.dtype, where));
  }
  std::vector<NDArray> parts() const override { return {inside_}; }
  std::string refusal() const override { return "a wrapped array"; }

 private:
  NDArray inside_;
};

/// Whether gradients of views are added in another order on arrays of an owner: where a view has several uses, which
/// are one term there, and on plain arrays go to the array one by one among its other uses; and where it has an element
/// several times.
bool adds_at_views(const Program& program) {
  std::vector<bool> view(program.leaves.size());
  std::vector<int> uses(program.leaves.size());
  for (const Step& s : program.steps) {
    if (s.code == Code::broadcast) return true;
    if (s.code != Code::fill) ++uses[s.a];
    const bool b = s.code == Code::select || s.code == Code::concat || s.code == Code::matmul ||
                   (s.code >= Code::add && s.code <= Code::guarded_div) || is_write(s.code);
    if (b) ++uses[s.b];
    if (s.code == Code::select) ++uses[s.c];
    if (is_write(s.code) || s.code == Code::term) continue;
    view.push_back(is_view(s.code));
    uses.push_back(0);
  }
  for (std::size_t i = 0; i < view.size(); ++i) {
    if (view[i] && uses[i] > 1) return true;
  }
  return false;
}

/// As the program on plain arrays: to the bit up to the first gradients, where no view has several uses. Second ones
/// are those of views that the gradients' rules make.
void as_plain(const Outcome& got, const Outcome& wanted, bool first_bits) {
  EXPECT_TRUE(same_bits(got.loss, wanted.loss) && same_bits(got.values, wanted.values)) << "values";
  if (first_bits) {
    EXPECT_TRUE(same_bits(got.first, wanted.first) && same_bits(got.again, wanted.again)) << "first gradients";
  }
  near(got.loss, wanted.loss, "loss");
  near(got.values, wanted.values, "value");
  near(got.first, wanted.first, "first gradient");
  near(got.second, wanted.second, "second gradient");
  near(got.again, wanted.again, "gradient by backward");
}

TEST(RandomPrograms, HaveTheSameBitsWhoeverLooksOn) {
  const char* const one = std::getenv("SLUICE_PROGRAM");
  const std::uint64_t first = one ? std::strtoull(one, nullptr, 10) : 1;
  const std::uint64_t count = one                                              ? 1
                              : std::getenv("SLUICE_DEEP")                     ? 10000
                              : current_scope().device.kind == DeviceKind::cpu ? 100
                                                                               : 20;
  std::cout << "programs " << first << " to " << first + count - 1 << "; SLUICE_PROGRAM=n runs the n-th\n";
  std::size_t looked_at = 0, owned = 0, bits = 0, writes_to_views = 0, windows = 0;
  for (const EngineMode mode : {EngineMode::threaded, EngineMode::serial}) {
    TestEngine test(2, 1, mode);
    for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
      const Program program = Maker(seed).make();
      SCOPED_TRACE("program " + std::to_string(seed) + (mode == EngineMode::serial ? ", serial" : ""));
      if (one && mode == EngineMode::threaded) std::cout << program.text();
      const Inputs in(program);
      const Outcome wanted = computed(program, in);
      const auto compare = [&](const char* what, const Outcome& got) {
        EXPECT_TRUE(same_bits(got, wanted)) << what << " changed bits\n" << program.text();
      };
      {
        const RecordScope notes;
        compare("notes", computed(program, in));
      }
      {
        const InterpreterScope scope(std::make_shared<sluice::Interpreter>());
        compare("an interpreter", computed(program, in));
      }
      if (seed % 4 == 0) {  // it waits at every call
        const auto twins = std::make_shared<Twins>();
        const InterpreterScope scope(twins);
        compare("an interpreter that makes all twice", computed(program, in));
        looked_at += twins->seen;
      }
      try {
        const Reading owner{Wrapped::made, Wrapped::read};
        const Outcome got = computed(program, in, owner);
        const bool to_the_bit = !adds_at_views(program);
        bits += to_the_bit;
        as_plain(got, wanted, to_the_bit);
        if (HasFailure()) std::cout << "an owner\n" << program.text();
        EXPECT_TRUE(same_bits(computed(program, in, owner), got)) << "an owner, again\n" << program.text();
        ++owned;
      } catch (const ArrayError& e) {
        const std::string text = e.what();
        const bool of_view = text.find("a recorded write to a view of an array of an owner") != text.npos;
        const bool of_window = text.find(": a wrapped array") != text.npos;
        EXPECT_TRUE(of_view || of_window) << text << "\n" << program.text();
        writes_to_views += of_view;
        windows += of_window;
      }
    }
  }
  std::cout << looked_at << " twins compared; " << owned << " programs on arrays of an owner, " << writes_to_views
            << " that write to views and " << windows << " that look through windows are refused\n";
  if (!one) {
    EXPECT_GT(looked_at, 10 * count);
    EXPECT_GT(owned, count / 8);
    EXPECT_GT(bits, count / 100);
  }
}

}  // namespace
}  // namespace sluice::testing
