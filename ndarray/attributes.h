// Attributes: the constants of one call of an operator, as one value of any type.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "sluice/ndarray/attribute_fields.h"

namespace sluice {

/// A value of the struct that an operator's row expects, or the body of an op that a program wrote. Immutable. Copies
/// of a small plain struct copy it, and take nothing from the heap; copies of other values share one.
class Attributes {
 public:
  Attributes() noexcept {}
  template <class A>
  requires(!std::is_same_v<A, Attributes>)
      Attributes(A value)  // NOLINT(google-explicit-constructor): apply(op, {x}, SumAttributes{...})
      : table_(&table_of<A>) {
    if constexpr (small<A>) {
      new (storage_) A(value);
    } else {
      new (storage_) Shared(std::make_shared<const A>(std::move(value)));
    }
  }
  Attributes(const Attributes& other) noexcept : table_(other.table_) { take(other); }
  Attributes& operator=(const Attributes& other) noexcept {
    if (this == &other) return *this;
    drop();
    table_ = other.table_;
    take(other);
    return *this;
  }
  ~Attributes() { drop(); }

  /// The struct. Throws std::bad_cast if A is not the type that it was made from.
  template <class A>
  const A& get() const {
    if (table_ != &table_of<A> && (!table_ || *table_->type != typeid(A))) throw std::bad_cast();
    return *static_cast<const A*>(data());
  }
  explicit operator bool() const { return table_ != nullptr; }
  /// The fields that the struct names (attribute_fields.h); none for a struct that names none.
  std::span<const AttributeField> fields() const { return table_ ? table_->fields : std::span<const AttributeField>(); }
  /// The value of a field; empty if the struct names no such field.
  std::optional<FieldValue> field(std::string_view name) const {
    for (const AttributeField& f : fields()) {
      if (name == f.name) return f.get(data());
    }
    return {};
  }
  /// The same struct with another value in one field. Throws UsageError for a field that the struct does not name, and
  /// for a value of another type than the field's.
  Attributes with(std::string_view name, const FieldValue& value) const;
  /// Where the value is; null if there is none.
  const void* data() const {
    if (!table_) return nullptr;
    return table_->small ? static_cast<const void*>(storage_) : shared().get();
  }
  /// True for equal types and equal values. It uses the struct's own ==, so that no attribute is forgotten. A value
  /// without == is equal at most to itself.
  friend bool operator==(const Attributes& a, const Attributes& b) {
    if (!a.table_ || !b.table_) return a.table_ == b.table_;
    return *a.table_->type == *b.table_->type && a.table_->equal(a.data(), b.data());
  }

 private:
  static constexpr std::size_t kInline = 48;
  using Shared = std::shared_ptr<const void>;
  template <class A>
  static constexpr bool small = std::is_trivially_copyable_v<A> && sizeof(A) <= kInline && alignof(A) <= 8;

  struct Table {
    const std::type_info* type;
    bool (*equal)(const void*, const void*);
    bool small;
    std::span<const AttributeField> fields;
    /// A copy with one field set; null where there are no fields.
    Attributes (*with)(const void*, const AttributeField&, const FieldValue&);
  };
  template <class A>
  static constexpr bool names_fields = requires {
    A::fields();
  };
  template <class A>
  static constexpr auto fields_of() {
    if constexpr (names_fields<A>) {
      return A::fields();
    } else {
      return std::array<AttributeField, 0>();
    }
  }
  template <class A>
  static constexpr auto field_list = fields_of<A>();
  template <class A>
  static Attributes changed(const void* from, const AttributeField& field, const FieldValue& value) {
    A copy = *static_cast<const A*>(from);
    field.set(&copy, value);
    return copy;
  }
  template <class A>
  static constexpr auto changer() -> Attributes (*)(const void*, const AttributeField&, const FieldValue&) {
    if constexpr (names_fields<A>) {
      return &changed<A>;
    } else {
      return nullptr;
    }
  }
  template <class A>
  static inline const Table table_of{&typeid(A),
                                     [](const void* a, const void* b) {
                                       if constexpr (std::equality_comparable<A>) {
                                         return *static_cast<const A*>(a) == *static_cast<const A*>(b);
                                       } else {
                                         return a == b;
                                       }
                                     },
                                     small<A>, field_list<A>, changer<A>()};

  const Shared& shared() const { return *std::launder(reinterpret_cast<const Shared*>(storage_)); }
  void take(const Attributes& other) noexcept {
    if (!table_) return;
    if (table_->small) {
      __builtin_memcpy(storage_, other.storage_, kInline);
    } else {
      new (storage_) Shared(other.shared());
    }
  }
  void drop() noexcept {
    if (table_ && !table_->small) shared().~Shared();
  }

  const Table* table_ = nullptr;
  alignas(8) std::byte storage_[kInline];
};

}  // namespace sluice
