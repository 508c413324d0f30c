// The registry: one row per operator, the kernels of backends, and the path by which operators are applied.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/ndarray/attributes.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/ndarray/push.h"
#include "sluice/ndarray/short_list.h"
#include "sluice/ndarray/spec.h"

namespace sluice {

class Placing;

/// What an operator's shape rule sees of a call: the inputs' specs and the attributes. The rule answers with output().
/// Of arrays it reads the specs in their place, because a call must not pay for copies of them.
class Signature {
 public:
  /// Of the call `name` at `where`, whose outputs live on `device`. `inputs` and `attributes` must outlive it; the
  /// arrays are not empty handles.
  Signature(const char* name, std::source_location where, std::span<const NDArray* const> inputs,
            const Attributes& attributes, Device device = {})
      : arrays_(inputs.data()),
        count_(static_cast<int>(inputs.size())),
        device_(device),
        attributes_(attributes),
        name_(name),
        where_(where) {}
  Signature(const char* name, std::source_location where, std::span<const Spec> inputs, const Attributes& attributes,
            Device device = {})
      : specs_(inputs.data()),
        count_(static_cast<int>(inputs.size())),
        device_(device),
        attributes_(attributes),
        name_(name),
        where_(where) {}
  int inputs() const { return count_; }
  const Dims& shape(int i) const { return arrays_ ? arrays_[i]->shape() : specs_[i].shape; }
  DType dtype(int i = 0) const { return arrays_ ? arrays_[i]->array()->dtype() : specs_[i].dtype; }
  Spec input(int i) const { return {shape(i), dtype(i), arrays_ ? arrays_[i]->array()->device() : specs_[i].device}; }
  template <class A>
  const A& attributes() const {
    return attributes_.get<A>();
  }
  /// Throws ArrayError where no array can have the shape.
  void output(const Dims& shape, DType dtype) {
    if (!can_be_allocated(shape, size_of(dtype))) [[unlikely]]
      check_shape(name_, shape, dtype, where_);
    outputs_.emplace_back(shape, dtype, device_);
  }
  std::span<const Spec> outputs() const { return {outputs_.begin(), outputs_.size()}; }
  std::source_location where() const { return where_; }

  /// Throws ArrayError: "[name] main.cc:41: (64, 10) x (12, 3): why", with the inputs' shapes.
  [[noreturn]] void fail(const std::string& why) const;
  /// Throws if the inputs from `first` on differ in dtype.
  void same_dtypes(int first = 0) const;
  /// floating throws unless input i is f32, f64, f16 or bf16. arithmetic allows integers too, and sums those of them
  /// that hold sums: i32 and i64. bits allows integers and bool.
  void arithmetic(int i = 0) const;
  void sums(int i = 0) const;
  void floating(int i = 0) const;
  void bits(int i = 0) const;
  void rank(int i, int rank) const;
  /// The shape to which all inputs broadcast.
  Dims broadcast() const;

 private:
  const NDArray* const* arrays_ = nullptr;  // null: the specs
  const Spec* specs_ = nullptr;
  int count_;
  Device device_;
  const Attributes& attributes_;
  const char* name_;
  std::source_location where_;
  ShortList<Spec, 1> outputs_;
};

/// What an operator's gradient rule sees. The rule answers with set(i, gradient of input i), which it makes by
/// operators.
class GradientContext {
 public:
  virtual ~GradientContext() = default;
  /// True if the gradient of input i is wanted. Other gradients need not be computed.
  virtual bool wanted(int i) const = 0;
  /// The gradient with respect to output i (zeros where nothing used that output).
  virtual const NDArray& gradient(int i = 0) = 0;
  /// False if nothing used output i.
  virtual bool has_gradient(int i) const = 0;
  /// The values that were kept because the row's `needs` names them.
  virtual const NDArray& input(int i) const = 0;
  virtual const NDArray& output(int i = 0) const = 0;
  virtual const Spec& input_spec(int i) const = 0;
  virtual int inputs() const = 0;
  virtual const Attributes& attributes() const = 0;
  /// The place of the forward call in the source, for the gradient's errors and traces.
  virtual std::source_location where() const = 0;
  /// True if the gradient is recorded itself: it must then be made of operators that have gradients.
  virtual bool create_graph() const = 0;
  /// For a rule in which the gradients of several inputs begin with the same value: what `make` gives. It is made
  /// once, also where backward_inputs() asks the rule twice, for some inputs first and for the others later. The rest
  /// of such a rule does not use gradient(): the second time it is no longer there.
  virtual const NDArray& common(NDArray (*make)(GradientContext& context)) = 0;
  virtual void set(int i, NDArray gradient) = 0;
};

/// What an operator's composition sees of a call. The inputs are values that no later write changes; it answers with
/// set(i, output i), made by other operators, of the specs that the row's shape rule gives.
class ComposeContext {
 public:
  ComposeContext(std::span<const NDArray* const> inputs, const Attributes& attributes, std::size_t outputs,
                 const std::source_location& where)
      : outputs_(outputs), inputs_(inputs), attributes_(attributes), where_(where) {}
  int inputs() const { return static_cast<int>(inputs_.size()); }
  const NDArray& input(int i) const { return *inputs_[static_cast<std::size_t>(i)]; }
  /// The last input where the call may leave it out, and has it at i; else an empty handle.
  NDArray input_or_none(int i) const { return i < inputs() ? input(i) : NDArray(); }
  template <class A>
  const A& attributes() const {
    return attributes_.get<A>();
  }
  /// The place of the call in the source.
  std::source_location where() const { return where_; }
  void set(int i, NDArray output) { outputs_[static_cast<std::size_t>(i)] = std::move(output); }
  /// What was set. An output that was not is an empty handle.
  std::vector<NDArray> take() { return std::move(outputs_); }

 private:
  std::vector<NDArray> outputs_;
  std::span<const NDArray* const> inputs_;
  const Attributes& attributes_;
  std::source_location where_;
};

using KernelFunction = void (*)(ArrayContext& context);

/// A set of kernels for one kind of device. Of the kernels that fit a call, the one whose backend has the highest rank
/// is used: so "cpu" (10) goes before "reference" (0), and what the first lacks runs on the second.
struct Backend {
  const char* name = "";  ///< "reference", "cpu", ...
  DeviceKind device = DeviceKind::cpu;
  int rank = 0;
};

/// A kernel: the function, and what must be known of it to choose it and to call it. Plain data, read-only once added.
struct Kernel {
  KernelFunction run = nullptr;
  bool dense_inputs = false;   ///< it wants contiguous inputs: other inputs are packed for it
  bool dense_outputs = false;  ///< the same for outputs, which are unpacked afterwards
  bool issues = false;  ///< on a device with streams: it issues work to the stream; else it runs as a kernel there
  /// Whether the kernel takes this call: it sees shapes, dtypes and attributes, the outputs' among them. Null: it takes
  /// all calls of its dtypes. Called at each push while no kernel of a higher rank fits, from any thread.
  bool (*takes)(const Signature& call) = nullptr;
  /// The bytes that the kernel borrows by ArrayContext::scratch for this call. They count as memory of the op, as its
  /// outputs do (PushOptions::bytes). Null: none to speak of, or not known before it runs.
  std::size_t (*scratch)(const Signature& call) = nullptr;
  Backend backend = {};  ///< set by add_kernel
};

/// What a call asks for, whichever kernel runs it.
struct Cost {
  double flops = 0;  ///< operations on single elements; costs.h says how they are counted
  double bytes = 0;  ///< read and written where nothing is moved twice
};

/// An operator's row. Rows live as long as the program.
struct Operator : OperatorInfo {
  using Infer = void (*)(Signature& signature);
  using Gradient = void (*)(GradientContext& context);

  int min_inputs = 1;
  int max_inputs = 1;        ///< or kAnyNumber
  bool elementwise = false;  ///< inputs broadcast; an output element depends on its own index alone
  int key = 0;               ///< the input whose dtype chooses the kernel; -1: output 0's dtype does
  Infer infer = nullptr;     ///< checks the inputs, and gives the outputs' shapes and dtypes
  /// The call's cost; the outputs' specs are there already. Null: not known (infer.h says what is taken then).
  Cost (*cost)(const Signature& call) = nullptr;
  Gradient gradient = nullptr;  ///< null: no gradient flows back
  /// The row written in other rows. It makes the call where the device has no kernel for its dtypes, which is said once
  /// on the standard error stream (SLUICE_COMPOSE=0: such calls throw), and on arrays of a mesh where the row has no
  /// rule for places. On the tape the call is one node with the row's own gradient all the same. A row that is another
  /// row's gradient is called by way of it where that gradient is to have one itself (builtin::composed in compose.h).
  /// Null: such calls throw.
  void (*compose)(ComposeContext& context) = nullptr;
  /// How the operands may lie on a mesh (placement.h). Null: elementwise rows have a rule; other rows take operands
  /// that are replicated.
  void (*place)(Placing& placing) = nullptr;
  /// needs[i]: which inputs and outputs the gradient of input i reads, and whose values are therefore kept until the
  /// backward pass: of mul(a, b), input 1 for a's gradient and input 0 for b's. The last entry counts for all further
  /// inputs too.
  std::vector<Needs> needs;
  /// Those of them that GradientContext::common's function reads and nothing else does. They are dropped once it ran.
  Needs common_needs;
  /// The rule makes all gradients in one go, whichever are wanted, as attention's does. A backward pass in two halves
  /// then asks it once, in the first half, and keeps what the second wants.
  bool joint_gradient = false;
  /// The rule hands the gradient on as it comes, however it lies (GradientLayout in ndarray/owner.h): a sum that is not
  /// made yet may be made later.
  bool relays_gradient = false;

  static constexpr int kAnyNumber = 1 << 30;

  Operator() = default;
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;

  /// Adds a kernel; calls from now on find it. `dtypes` are those of the operands, inputs first and then outputs. One
  /// alone is the dtype of the operand that `key` names, and the others' follow from the row; a kernel that mixes
  /// dtypes gives as many as tell its calls from others. Of kernels with equal ranks the one that was added last goes
  /// first. Throws UsageError if there is no function, or if `key` names an operand beyond `dtypes`. Thread-safe.
  void add_kernel(const Backend& backend, std::span<const DType> dtypes, const Kernel& kernel) const;
  void add_kernel(const Backend& backend, std::initializer_list<DType> dtypes, const Kernel& kernel) const {
    add_kernel(backend, std::span(dtypes.begin(), dtypes.size()), kernel);
  }
  /// The kernel with the highest rank, of those up to `max_rank`, that fits the call; null if there is none. A device
  /// that is simulated on the host (sim, null) has the CPU's kernels of rank 0 beside its own. Thread-safe. Where the
  /// first kernel of the key's dtype takes all its calls, this is one load from an array.
  const Kernel* kernel(DeviceKind device, const Signature& call, int max_rank = kAnyRank) const {
    const DType dtype = key_of(call);
    const Entry* first = list_of(device, dtype).load(std::memory_order_acquire);
    if (first && first->takes_all && first->kernel.backend.rank <= max_rank) return &first->kernel;
    return search(device, dtype, &call, max_rank);
  }
  /// The same for any call whose key has this dtype: kernels that take only some of these calls are passed over.
  const Kernel* kernel(DeviceKind device, DType dtype, int max_rank = kAnyRank) const {
    return search(device, dtype, nullptr, max_rank);
  }
  /// All kernels of a kind of device that calls with this key's dtype may find, by falling rank. Thread-safe.
  std::vector<const Kernel*> kernels(DeviceKind device, DType dtype) const;
  /// The dtype that chooses the list of kernels.
  DType key_of(const Signature& call) const { return key < 0 ? call.outputs()[0].dtype : call.dtype(key); }

  static constexpr int kAnyRank = 1 << 30;

 private:
  /// The lists' entries go by falling rank, and are never removed. What choosing reads lies in one cache line.
  struct alignas(64) Entry {
    Kernel kernel;
    bool takes_all = false;     ///< it has no predicate, and its dtypes are no more than the key's
    std::vector<DType> dtypes;  ///< of the operands, if there are several
    mutable std::atomic<const Entry*> next;
    bool fits(const Signature* call) const;
  };
  using List = std::atomic<const Entry*>;

  List& list_of(DeviceKind device, DType dtype) const {
    return kernels_[static_cast<std::size_t>(device)][static_cast<std::size_t>(dtype)];
  }
  const Kernel* search(DeviceKind device, DType dtype, const Signature* call, int max_rank) const;
  const Kernel* listed(DeviceKind device, DType dtype, const Signature* call, int max_rank) const;

  mutable std::array<std::array<List, kDTypeCount>, kDeviceKinds> kernels_{};
};

/// All rows, by name. The library's own rows are there from the first use; a program can add rows at any time.
class Registry {
 public:
  static Registry& instance();
  /// Adds a row; returns it. Throws UsageError for a name that is taken.
  const Operator& add(std::unique_ptr<Operator> row);
  /// The row of this name; null if there is none.
  const Operator* find(std::string_view name) const;
  /// Throws UsageError for an unknown name.
  const Operator& get(std::string_view name) const;
  std::vector<const Operator*> all() const;

 private:
  Registry();
  struct State;
  std::unique_ptr<State> state_;
};

/// Makes a row: add_operator("cube", [](Operator& row) { row.infer = ...; }).
template <class F>
const Operator& add_operator(Registry& registry, const char* name, F&& fill) {
  auto row = std::make_unique<Operator>();
  row->name = name;
  fill(*row);
  return registry.add(std::move(row));
}
template <class F>
const Operator& add_operator(const char* name, F&& fill) {
  return add_operator(Registry::instance(), name, std::forward<F>(fill));
}

/// While it lives, the calling thread's pushes use only kernels of rank at most `max_rank`. For tests that compare
/// backends.
class KernelRankLimit {
 public:
  static int current();
  explicit KernelRankLimit(int max_rank);
  ~KernelRankLimit();
  KernelRankLimit(const KernelRankLimit&) = delete;
  KernelRankLimit& operator=(const KernelRankLimit&) = delete;

 private:
  int saved_;
};

struct ApplyOptions {
  std::source_location where = std::source_location::current();
  int priority = kDefaultPriority;
  /// The outputs, if they are existing arrays: views of the right shape and dtype. Empty: new arrays are made.
  std::span<const NDArray> into = {};
  /// Those of `into` that the kernel reads too and changes (optimiser states, accumulation).
  Updates updates = {};
  /// Where outputs live when there are no inputs; default: the scope's device.
  Place on = {};
  /// Where the op runs, if not there (transfers). The kernel is then one of this device.
  Place lane = {};
  /// If this device has streams, new outputs on the host lie in memory that the streams can copy from and to.
  Device pinned = {};
  /// How often in all a launch on a device is tried that fails (ArrayPush::tries), and what holds for an op that
  /// changes a part of what belongs together (ArrayPush::torn_unissued).
  std::uint8_t tries = 1;
  bool torn_unissued = false;
};

/// Applies an operator: checks, shapes, recording for gradients, versions, push. Returns the outputs (new arrays, or
/// `into`). Throws ArrayError at the call, and what Engine::push throws. Thread-safe; does not block, but at the caps.
std::vector<NDArray> apply_all(const Operator& op, std::span<const NDArray* const> inputs, const Attributes& attributes,
                               const ApplyOptions& options);
/// The same for options.into, without a result.
void apply_into(const Operator& op, std::span<const NDArray* const> inputs, const Attributes& attributes,
                const ApplyOptions& options);
inline void apply_into(const Operator& op, std::initializer_list<const NDArray*> inputs, const Attributes& attributes,
                       const ApplyOptions& options) {
  apply_into(op, std::span(inputs.begin(), inputs.size()), attributes, options);
}
/// The same; returns the first output.
NDArray apply(const Operator& op, std::initializer_list<const NDArray*> inputs, const Attributes& attributes = {},
              const ApplyOptions& options = {});

namespace detail {
/// How operators are recorded. autograd/ sets one recorder when it is first used.
struct Recorder {
  virtual ~Recorder() = default;
  /// Makes an empty node. Called under the locks of a push.
  Ref<History> (*begin)() = nullptr;
  /// Makes a call that has an operand of an owner by `ask`, in grad mode recorded. The results are arrays of their own.
  std::vector<NDArray> (*owned)(const Operator& op, std::span<const NDArray* const> inputs,
                                const Attributes& attributes, std::span<const NDArray> targets, const Updates& updates,
                                const std::source_location& where,
                                const std::function<std::vector<NDArray>()>& ask) = nullptr;
  /// Called after the push: fills the node.
  virtual void finish(const Operator& op, const Attributes& attributes, std::span<const NDArray* const> inputs,
                      std::span<const NDArray> outputs, Tape& tape, const std::source_location& where) = 0;
};
void set_recorder(Recorder* recorder);
}  // namespace detail

}  // namespace sluice
