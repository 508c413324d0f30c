// OperationRecord: what an operation on arrays is, as a value that can be read without running it. Captures, fusion,
// plans of memory and drawings stand on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/engine/operation.h"
#include "sluice/engine/scope.h"
#include "sluice/ndarray/attributes.h"
#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/dtype.h"

namespace sluice {

class ArrayContext;

/// An operand: a window on a version of an array, as the push resolved it.
struct OperandRecord {
  enum class Use : std::uint8_t {
    reads,
    writes,   ///< all elements of the window, without reading them
    updates,  ///< reads the elements, and then writes them
  };
  Use use = Use::reads;
  /// The operation is the first to write this version: it made the array, or the array's old value is held elsewhere.
  bool made = false;
  bool packed = false;  ///< the kernel gets a contiguous copy of the window
  /// Names the version: the numbers of the engine's variables by which operations on it are ordered. There is one; the
  /// whole of a partitioned array has one for each part, and an import those of imports that it overlaps. Operands with
  /// a number in common name the same memory: one operation reads what another wrote if that one is the last before it
  /// that writes such an operand. Numbers are not used again (but for every 2^32nd variable).
  std::vector<std::uint32_t> version;
  Device device;
  DType dtype = DType::f32;
  Dims shape, strides;      ///< in elements
  std::int64_t offset = 0;  ///< of the first element in the version's buffer, in elements
};

/// What an operation does, one step after another.
struct StepRecord {
  enum class Kind : std::uint8_t {
    preserve,  ///< copies bytes of a version that is held elsewhere to the new version that is written, or away from it
    pack,      ///< copies an operand's window to contiguous memory
    kernel,    ///< calls the kernel, or a program's own body
    unpack,    ///< copies contiguous memory back to an operand's window
  };
  Kind kind = Kind::kernel;
  std::size_t operand = 0;           ///< of pack and unpack
  std::uint32_t from = 0, to = 0;    ///< of preserve: the first number of each version
  std::size_t begin = 0, bytes = 0;  ///< of preserve: the stretch, in both
};

/// An operation on arrays at the instant of its push. It holds no array and no memory.
struct OperationRecord {
  std::string name;                               ///< as traces and errors name it
  const OperatorInfo* row = nullptr;              ///< null: an opaque op, or a copy of a held value
  void (*body)(ArrayContext& context) = nullptr;  ///< the kernel that was chosen; null: a copy of a held value
  Attributes attributes;                          ///< the row's; an opaque op has none
  std::vector<OperandRecord> operands;            ///< inputs, then outputs
  std::size_t inputs = 0;                         ///< how many of these are inputs
  std::vector<StepRecord> steps;                  ///< in their order
  Device device;                                  ///< where it runs
  LaneKind lane = LaneKind::compute;
  int priority = kDefaultPriority;
  // Of the pushing thread's scope:
  std::uint64_t tag = 0;
  std::uint32_t flags = 0;
  const char* layer = "";      ///< a path such as "encoder.2", which lives as long as the program; empty: none
  std::source_location where;  ///< the push: a line of the program

  /// "row", "opaque" or "copy on write".
  std::string_view kind() const { return row ? "row" : body ? "opaque" : "copy on write"; }
  /// The value of a slot; empty if the row has none of this name.
  std::optional<FieldValue> slot(std::string_view slot) const;
  std::span<const OperandRecord> input_operands() const { return std::span(operands).first(inputs); }
  std::span<const OperandRecord> output_operands() const { return std::span(operands).subspan(inputs); }
};

/// One line: "sgd_step(lr=0.1 momentum=0 weight_decay=0) reads v12 f32 (5, 6); updates v3 f32 (5, 6); on cpu(0);
/// train.cc:41". Strides and offsets are left out where the window is the whole of a contiguous buffer's beginning.
std::string to_string(const OperationRecord& record);

/// While it lives, each push of the calling thread on arrays is noted, in the order of the pushes: rows and their
/// gradients, copies of held values, and ops of the program's own (push_op). What bodies push is not noted, and neither
/// are waits, which read values on the host. Of several scopes on one thread the innermost notes. A push that throws is
/// not noted.
class RecordScope : ScopeGuard {
 public:
  RecordScope() { current_scope().records = &records_; }
  const std::vector<OperationRecord>& records() const { return records_; }

 private:
  std::vector<OperationRecord> records_;
};

struct ArrayCall;
struct ArrayPush;
/// The record of a push that was resolved to `call`. For push_arrays.
OperationRecord record_of(const ArrayPush& push, const char* name, const PushOptions& options, const ArrayCall& call);

}  // namespace sluice
