// Random programs under interpreters, under notes, and on arrays of an owner: the bits are those of the program alone.
// SLUICE_DEEP=1 runs 2,000 of them; SLUICE_PROGRAM=n runs the n-th alone, and prints it.
#include <gtest/gtest.h>

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

/// Makes each call and each view once more, of twins: a twin must always have the bits of its array.
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
    if (call.kind() != ViewKind::window) set(call.result(), call.of(twin_of(call.input())));
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
  void set(const NDArray& x, const NDArray& twin) {
    check(x, twin);
    pairs_.insert_or_assign(key(x), Pair{x, twin});
  }
  NDArray twin_of(const NDArray& x) {
    const auto at = pairs_.find(key(x));
    if (at == pairs_.end()) return x.detach().copy();
    check(x, at->second.twin);
    return at->second.twin;
  }
  void check(const NDArray& x, const NDArray& twin) {
    ++seen;
    EXPECT_EQ(x.to_bytes(), twin.to_bytes());
  }
  std::map<Key, Pair> pairs_;
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

TEST(RandomPrograms, HaveTheSameBitsWhoeverLooksOn) {
  const char* const one = std::getenv("SLUICE_PROGRAM");
  const std::uint64_t first = one ? std::strtoull(one, nullptr, 10) : 1;
  const std::uint64_t count = one                                              ? 1
                              : std::getenv("SLUICE_DEEP")                     ? 2000
                              : current_scope().device.kind == DeviceKind::cpu ? 100
                                                                               : 20;
  std::cout << "programs " << first << " to " << first + count - 1 << "; SLUICE_PROGRAM=n runs the n-th\n";
  std::size_t looked_at = 0, owned = 0, writes_to_views = 0, windows = 0;
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
        compare("an owner", computed(program, in, {Wrapped::made, Wrapped::read}));
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
            << " of which write to views and " << windows << " of which look through windows are refused\n";
  if (!one) {
    EXPECT_GT(looked_at, 10 * count);
    EXPECT_GT(owned, count / 8);
  }
}

}  // namespace
}  // namespace sluice::testing
