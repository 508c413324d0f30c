// Attributes of the library's operators. Each struct names its fields, for readers of records
// (ndarray/attribute_fields.h).
#pragma once

#include <array>
#include <cstdint>

#include "sluice/ndarray/attribute_fields.h"
#include "sluice/resources/philox.h"

namespace sluice {

/// For the rows X_scalar: the number, and whether it stands on the left.
struct ScalarAttributes {
  Scalar value;
  bool left = false;
  static constexpr auto fields() {
    return std::array{field<&ScalarAttributes::value>("value"), field<&ScalarAttributes::left>("left")};
  }
  friend bool operator==(const ScalarAttributes&, const ScalarAttributes&) = default;
};

/// For fill and arange: element i is value + i * step.
struct FillAttributes {
  Scalar value;
  Scalar step;
  Dims shape;
  DType dtype = DType::f32;
  static constexpr auto fields() {
    return std::array{field<&FillAttributes::value>("value"), field<&FillAttributes::step>("step"),
                      field<&FillAttributes::shape>("shape"), field<&FillAttributes::dtype>("dtype")};
  }
  friend bool operator==(const FillAttributes&, const FillAttributes&) = default;
};

struct RandomAttributes {
  std::uint64_t seed = 0, stream = 0, draw = 0, first = 0;
  double a = 0, b = 1;  ///< low and high, or mean and deviation
  Dims shape;
  DType dtype = DType::f32;
  /// Of a part that is cut along an axis behind the first: pieces of `piece` elements, which begin `stride` apart in
  /// the draw of the whole. 0: one piece.
  std::int64_t piece = 0, stride = 0;
  static constexpr auto fields() {
    return std::array{field<&RandomAttributes::seed>("seed"),   field<&RandomAttributes::stream>("stream"),
                      slot<&RandomAttributes::draw>("draw"),    field<&RandomAttributes::first>("first"),
                      field<&RandomAttributes::a>("a"),         field<&RandomAttributes::b>("b"),
                      field<&RandomAttributes::shape>("shape"), field<&RandomAttributes::dtype>("dtype"),
                      field<&RandomAttributes::piece>("piece"), field<&RandomAttributes::stride>("stride")};
  }
  friend bool operator==(const RandomAttributes&, const RandomAttributes&) = default;
};

/// The draw, the probability, and which elements of the draw x has: as in RandomAttributes.
struct DropoutAttributes {
  std::uint64_t seed = 0, stream = 0, draw = 0, first = 0;
  double p = 0;
  std::int64_t piece = 0, stride = 0;
  static constexpr auto fields() {
    using A = DropoutAttributes;
    return std::array{field<&A::seed>("seed"),    field<&A::stream>("stream"), slot<&A::draw>("draw"),
                      field<&A::first>("first"),  field<&A::p>("p"),           field<&A::piece>("piece"),
                      field<&A::stride>("stride")};
  }
  friend bool operator==(const DropoutAttributes&, const DropoutAttributes&) = default;
};

struct RandomIntegerAttributes {
  std::uint64_t seed = 0, stream = 0, draw = 0;
  std::int64_t low = 0, high = 1;
  Dims shape;
  DType dtype = DType::i64;
  static constexpr auto fields() {
    using A = RandomIntegerAttributes;
    return std::array{field<&A::seed>("seed"),  field<&A::stream>("stream"), slot<&A::draw>("draw"),
                      field<&A::low>("low"),    field<&A::high>("high"),     field<&A::shape>("shape"),
                      field<&A::dtype>("dtype")};
  }
  friend bool operator==(const RandomIntegerAttributes&, const RandomIntegerAttributes&) = default;
};

/// For put_rows: the shape of the result, and whether rows are added or overwritten.
struct PutAttributes {
  Dims shape;
  bool add = false;
  static constexpr auto fields() {
    return std::array{field<&PutAttributes::shape>("shape"), field<&PutAttributes::add>("add")};
  }
  friend bool operator==(const PutAttributes&, const PutAttributes&) = default;
};

/// For take_rows of a part of an array of `of` rows, which begins at row `begin`: rows of other parts are zeros. None
/// for the whole.
struct RowsAttributes {
  std::int64_t begin = 0, of = 0;
  static constexpr auto fields() {
    return std::array{field<&RowsAttributes::begin>("begin"), field<&RowsAttributes::of>("of")};
  }
  friend bool operator==(const RowsAttributes&, const RowsAttributes&) = default;
};

struct TransferAttributes {
  Device from, to;
  static constexpr auto fields() {
    return std::array{field<&TransferAttributes::from>("from"), field<&TransferAttributes::to>("to")};
  }
  friend bool operator==(const TransferAttributes&, const TransferAttributes&) = default;
};

struct DTypeAttributes {
  DType dtype = DType::f32;
  static constexpr auto fields() { return std::array{field<&DTypeAttributes::dtype>("dtype")}; }
  friend bool operator==(const DTypeAttributes&, const DTypeAttributes&) = default;
};

/// For scatter: the window that the input has in an array of `shape`; strides and offset are in elements.
struct WindowAttributes {
  Dims shape;
  Dims strides;
  std::int64_t offset = 0;
  static constexpr auto fields() {
    return std::array{field<&WindowAttributes::shape>("shape"), field<&WindowAttributes::strides>("strides"),
                      field<&WindowAttributes::offset>("offset")};
  }
  friend bool operator==(const WindowAttributes&, const WindowAttributes&) = default;
};

struct AxisAttributes {
  int axis = 0;
  std::int64_t size = 0;
  DType dtype = DType::f32;
  static constexpr auto fields() {
    return std::array{field<&AxisAttributes::axis>("axis"), field<&AxisAttributes::size>("size"),
                      field<&AxisAttributes::dtype>("dtype")};
  }
  friend bool operator==(const AxisAttributes&, const AxisAttributes&) = default;
};

/// For sum and max: bit i is set if axis i is reduced. `keep`: the axis stays with size 1.
struct ReduceAttributes {
  std::uint32_t axes = 0;
  bool keep = false;
  double scale = 1;  ///< the sum is multiplied by it; for a mean it is 1 / n
  static constexpr auto fields() {
    return std::array{field<&ReduceAttributes::axes>("axes"), field<&ReduceAttributes::keep>("keep"),
                      field<&ReduceAttributes::scale>("scale")};
  }
  friend bool operator==(const ReduceAttributes&, const ReduceAttributes&) = default;
};

struct MatmulAttributes {
  bool transpose_a = false, transpose_b = false;
  static constexpr auto fields() {
    return std::array{field<&MatmulAttributes::transpose_a>("transpose_a"),
                      field<&MatmulAttributes::transpose_b>("transpose_b")};
  }
  friend bool operator==(const MatmulAttributes&, const MatmulAttributes&) = default;
};

struct ConvAttributes {
  std::int64_t stride = 1, padding = 0;
  bool relu = false;
  Dims wanted;           ///< for gradients: the shape of x or of the weight
  bool winograd = true;  ///< may be used
  static constexpr auto fields() {
    return std::array{field<&ConvAttributes::stride>("stride"), field<&ConvAttributes::padding>("padding"),
                      field<&ConvAttributes::relu>("relu"), field<&ConvAttributes::wanted>("wanted"),
                      field<&ConvAttributes::winograd>("winograd")};
  }
  friend bool operator==(const ConvAttributes&, const ConvAttributes&) = default;
};

struct PoolAttributes {
  std::int64_t kernel = 2, stride = 2, padding = 0;
  Dims wanted;             ///< for the gradient: the shape of x
  bool ceil_mode = false;  ///< the number of windows is rounded up
  static constexpr auto fields() {
    return std::array{field<&PoolAttributes::kernel>("kernel"), field<&PoolAttributes::stride>("stride"),
                      field<&PoolAttributes::padding>("padding"), field<&PoolAttributes::wanted>("wanted"),
                      field<&PoolAttributes::ceil_mode>("ceil_mode")};
  }
  friend bool operator==(const PoolAttributes&, const PoolAttributes&) = default;
};

/// For class_labels. A row with the label `ignored` counts for nothing, where there is such a label.
struct ClassLabelAttributes {
  std::int64_t classes = 0;
  bool ignores = false;
  std::int64_t ignored = 0;
  bool is_ignored(std::int64_t label) const { return ignores && label == ignored; }
  static constexpr auto fields() {
    return std::array{field<&ClassLabelAttributes::classes>("classes"),
                      field<&ClassLabelAttributes::ignores>("ignores"),
                      field<&ClassLabelAttributes::ignored>("ignored")};
  }
  friend bool operator==(const ClassLabelAttributes&, const ClassLabelAttributes&) = default;
};

/// For class_parts: `classes` are cut into `parts` at r classes / parts; the call is about `here` of them from `first`
/// on.
struct ClassPartsAttributes {
  std::int64_t classes = 0, parts = 1, first = 0, here = 1;
  std::int64_t numbers = 3;  ///< of a row and part: 2 without the sum of the logits
  /// Where part r of the call begins, among all classes; r = here: where the last one ends.
  std::int64_t begin(std::int64_t r) const { return (first + r) * classes / parts; }
  static constexpr auto fields() {
    using A = ClassPartsAttributes;
    return std::array{field<&A::classes>("classes"), field<&A::parts>("parts"), field<&A::first>("first"),
                      field<&A::here>("here"), field<&A::numbers>("numbers")};
  }
  friend bool operator==(const ClassPartsAttributes&, const ClassPartsAttributes&) = default;
};

struct LossAttributes {
  double scale = 1;
  static constexpr auto fields() { return std::array{slot<&LossAttributes::scale>("scale")}; }
  friend bool operator==(const LossAttributes&, const LossAttributes&) = default;
};

/// For normalize_rows and its gradients: the last `axes` axes are normalised together. Without `centred` the mean is
/// not subtracted.
struct NormalizeAttributes {
  int axes = 1;
  double eps = 0;
  bool centred = true;
  static constexpr auto fields() {
    return std::array{field<&NormalizeAttributes::axes>("axes"), field<&NormalizeAttributes::eps>("eps"),
                      field<&NormalizeAttributes::centred>("centred")};
  }
  friend bool operator==(const NormalizeAttributes&, const NormalizeAttributes&) = default;
};

struct SgdAttributes {
  double lr = 0, momentum = 0, weight_decay = 0;
  static constexpr auto fields() {
    return std::array{slot<&SgdAttributes::lr>("lr"), field<&SgdAttributes::momentum>("momentum"),
                      field<&SgdAttributes::weight_decay>("weight_decay")};
  }
  friend bool operator==(const SgdAttributes&, const SgdAttributes&) = default;
};

struct LinearAttributes {
  bool relu = false;
  static constexpr auto fields() { return std::array{field<&LinearAttributes::relu>("relu")}; }
  friend bool operator==(const LinearAttributes&, const LinearAttributes&) = default;
};

}  // namespace sluice
