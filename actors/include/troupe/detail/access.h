#pragma once
// How Troupe's own code makes what users are given (handles, watches, groups, an actor's context),
// and reaches the connections behind it. Users need none of it: it is no part of the interface.

#include <memory>
#include <utility>

namespace troupe::detail {

struct Access {
  template <typename T, typename... A>
  static T make(A&&... parts) {
    return T(std::forward<A>(parts)...);
  }
  template <typename T, typename... A>
  static std::unique_ptr<T> make_unique(A&&... parts) {
    return std::unique_ptr<T>(new T(std::forward<A>(parts)...));
  }
  template <typename T, typename... A>
  static auto create(A&&... parts) {
    return T::create(std::forward<A>(parts)...);
  }
  // The process's ActorClient: of a handle, a Cluster, an ActorContext. Null where it was moved
  // from.
  template <typename T>
  static auto client(const T& of) {
    return of.client();
  }
  // … or why nothing can be asked through it: of an Actors (actors.h).
  template <typename T>
  static auto usable(const T& actors) {
    return actors.usable();
  }
  template <typename T>
  static const auto& channel(const T& handle) {
    return handle.channel_;
  }
  template <typename T>
  static const auto& object(const T& ref) {
    return ref.held_;
  }
};

}  // namespace troupe::detail
