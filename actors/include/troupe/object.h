#pragma once
// Objects: values in shared memory of the nodes, put once, read in place by any number of
// processes.
//
//   ObjectRef<std::vector<float>> weights = cluster.put(std::vector<float>(1'000'000)).value();
//   worker.call<&Worker::learn>(weights);                    // a reference travels, not the floats
//
//   float Worker::learn(Object<std::vector<float>> weights) {
//     std::span<const float> values = *weights;              // the shared memory itself
//
// A reference is a value: copied, passed to actors, returned by them, kept. The object lives while
// any process of the cluster has one. Its bytes lie on the node where it was put, and on those
// where it was read; where memory is short they go to disk and come back. They are lost
// (kObjectLost) with the last node that has them: nothing makes them again.
//
// References and objects may be used by any thread; reading may wait, so not on a thread of
// Troupe's (a continuation, a watch).

#include <concepts>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/detail/access.h"
#include "troupe/detail/object_core.h"
#include "troupe/serialize.h"

namespace troupe {

// How a T lies in an object, and what reading it in place gives. Any serialisable type is encoded
// and decoded; arrays of numbers, and strings, lie there as they are.
template <typename T>
struct ObjectLayout {
  using View = const T&;
  static constexpr bool kInPlace = false;
};
template <typename E>
requires(std::is_arithmetic_v<E> && !std::is_same_v<E, bool>) struct ObjectLayout<std::vector<E>> {
  using View = std::span<const E>;
  static constexpr bool kInPlace = true;
  static View view(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const E*>(bytes.data()), bytes.size() / sizeof(E)};
  }
  static std::span<const std::byte> bytes_of(const std::vector<E>& value) {
    return std::as_bytes(std::span(value));
  }
};
template <>
struct ObjectLayout<std::vector<std::byte>> {
  using View = std::span<const std::byte>;
  static constexpr bool kInPlace = true;
  static View view(std::span<const std::byte> bytes) { return bytes; }
  static std::span<const std::byte> bytes_of(const std::vector<std::byte>& value) { return value; }
};
template <>
struct ObjectLayout<std::string> {
  using View = std::string_view;
  static constexpr bool kInPlace = true;
  static View view(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  static std::span<const std::byte> bytes_of(const std::string& value) {
    return std::as_bytes(std::span(value));
  }
};

// What the object is that a T is put into, where that is another type: a view's array (tensor.h).
template <typename T>
struct ObjectContent {
  using Type = T;
};

template <typename T>
class ObjectRef;

// An object that is read: its bytes stay in memory, where they are, while one of these lives.
// Copying it copies nothing else. As a parameter of a method it is given an ObjectRef<T> by the
// caller, and has been read when the method begins; a call whose object cannot be read ends with
// why.
template <typename T>
class Object {
  using Layout = ObjectLayout<T>;

 public:
  Object() = default;
  // For arguments of calls: the callee reads it.
  Object(const ObjectRef<T>& ref);  // NOLINT: as an argument

  // std::span<const E> of a vector of numbers, std::string_view of a string, const T& of others.
  typename Layout::View operator*() const {
    if constexpr (Layout::kInPlace) {
      return Layout::view(bytes_.bytes);
    } else {
      return *value_;
    }
  }
  const T* operator->() const requires(!Layout::kInPlace) { return value_.get(); }
  // What it was put as, in this process's own memory.
  T copy() const {
    if constexpr (Layout::kInPlace) {
      const auto view = **this;
      if constexpr (requires { view.begin(); }) {
        return T(view.begin(), view.end());
      } else {
        return T(view);
      }
    } else {
      return *value_;
    }
  }
  // Its encoded bytes, or the numbers themselves.
  std::span<const std::byte> bytes() const { return bytes_.bytes; }
  ObjectRef<T> ref() const;

 private:
  template <typename>
  friend class ObjectRef;
  friend struct Codec<Object<T>>;

  Status take(detail::ObjectBytes bytes) {
    if constexpr (!Layout::kInPlace) {
      auto value = decode_value<T>(bytes.bytes);
      if (!value.ok()) return value.status();
      value_ = std::make_shared<const T>(std::move(*value));
    } else if constexpr (requires { Layout::check(bytes.bytes); }) {
      TROUPE_RETURN_IF_ERROR(Layout::check(bytes.bytes));
    }
    bytes_ = std::move(bytes);
    return {};
  }

  detail::HeldObjectPtr held_;
  detail::ObjectBytes bytes_;
  std::shared_ptr<const T> value_;
};

// Names an object, and keeps it.
template <typename T>
class ObjectRef {
 public:
  // No object, as one that was moved from: reading it ends with kFailedPrecondition.
  ObjectRef() = default;
  bool empty() const { return held_ == nullptr; }
  ObjectId id() const { return held_ ? detail::object_id_of(*held_) : ObjectId{}; }
  // Of its bytes in memory.
  std::uint64_t bytes() const { return held_ ? detail::object_bytes_of(*held_) : 0; }

  // Waits until its bytes are on this node. kObjectLost; kDeadlineExceeded; kResourceExhausted
  // where there is no room for them; kDataLoss where disk has damaged them.
  Result<Object<T>> get(Duration timeout = kObjectTimeout) const {
    if (!held_) return detail::empty_object_error("get() of");
    auto bytes = detail::read_object(held_, timeout);
    if (!bytes.ok()) return bytes.status();
    Object<T> object;
    object.held_ = held_;
    if (Status taken = object.take(std::move(*bytes)); !taken.ok()) return taken;
    return object;
  }
  friend bool operator==(const ObjectRef& a, const ObjectRef& b) { return a.id() == b.id(); }

 private:
  friend struct detail::Access;
  friend struct Codec<ObjectRef<T>>;
  friend class Object<T>;
  explicit ObjectRef(detail::HeldObjectPtr held) : held_(std::move(held)) {}

  detail::HeldObjectPtr held_;
};

template <typename T>
Object<T>::Object(const ObjectRef<T>& ref) : held_(ref.held_) {}
template <typename T>
ObjectRef<T> Object<T>::ref() const {
  return ObjectRef<T>(held_);
}

template <typename T>
struct Codec<ObjectRef<T>> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = 1;
  static constexpr std::uint64_t kHash = TypeHash::mix(TypeHash::of("object"), Codec<T>::kHash);
  static void encode(Encoder& out, const ObjectRef<T>& value) {
    detail::encode_object(out, value.held_);
  }
  static bool decode(Decoder& in, ObjectRef<T>& value) {
    return detail::decode_object(in, Codec<T>::kHash, value.held_);
  }
};

// To the peer it is a reference.
template <typename T>
struct Codec<Object<T>> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = 1;
  static constexpr std::uint64_t kHash = Codec<ObjectRef<T>>::kHash;
  static void encode(Encoder& out, const Object<T>& value) {
    detail::encode_object(out, value.held_);
  }
  static bool decode(Decoder& in, Object<T>& value) {
    detail::ObjectBytes bytes;
    if (!detail::decode_and_read_object(in, Codec<T>::kHash, value.held_, bytes)) return false;
    const Status taken = value.take(std::move(bytes));
    return taken.ok() || in.fail(taken);
  }
};

namespace detail {

template <typename T>
auto put_object(const std::shared_ptr<ActorClient>& client, const T& value, Duration timeout)
    -> Result<ObjectRef<typename ObjectContent<T>::Type>> {
  using Content = typename ObjectContent<T>::Type;
  static_assert(Serializable<Content>, "this type cannot be an object: it is not serialisable");
  using Layout = ObjectLayout<Content>;
  const auto store = [&](std::size_t size, auto write) -> Result<ObjectRef<Content>> {
    auto room = make_object_room(client, size, timeout);
    if (!room.ok()) return room.status();
    if (size > 0) write((*room)->bytes());
    return Access::make<ObjectRef<Content>>((*room)->seal(Codec<Content>::kHash));
  };
  const auto copy = [&](std::span<const std::byte> bytes) {
    return store(bytes.size(), [&](std::span<std::byte> into) {
      std::memcpy(into.data(), bytes.data(), bytes.size());
    });
  };
  if constexpr (requires { Layout::bytes_in(value); }) {
    return store(Layout::bytes_in(value),
                 [&](std::span<std::byte> into) { Layout::write(value, into); });
  } else if constexpr (Layout::kInPlace) {
    return copy(Layout::bytes_of(value));
  } else {
    return copy(encode_value(value));
  }
}

}  // namespace detail
}  // namespace troupe
