#pragma once
// What comes after what, for a build that ThreadSanitizer watches.
//
// A GPU orders work by streams, events and waits alone. The locks of the fake order far more: two
// streams that take the same one now and then look as if they waited for each other. So these locks
// are not believed (Unwatched), and what a GPU does promise is said instead (happens_before,
// happens_after). A wait between streams that is missing is then a data race of what they compute,
// however the threads happened to run. Nothing in other builds. Private to this folder.

#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void __tsan_acquire(void* at);
void __tsan_release(void* at);
}
#endif

namespace troupe::tests::fake {

#if defined(__SANITIZE_THREAD__)

// As long as it lives, what this thread does is the fake's own business: locks order nothing, and
// what they guard is no race.
class Unwatched {
 public:
  Unwatched() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
  }
  ~Unwatched() {
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

// Within Unwatched: what a GPU would do.
class Watched {
 public:
  Watched() {
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  ~Watched() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
};

// Outside of Unwatched. What was done before one call comes before what is done after the other one
// of the same address, where that is made later.
inline void happens_before(void* at) { __tsan_release(at); }
inline void happens_after(void* at) { __tsan_acquire(at); }

#else

class Unwatched {
 public:
  Unwatched() {}  // NOLINT(modernize-use-equals-default): else it is a variable without a use
};
class Watched {
 public:
  Watched() {}  // NOLINT(modernize-use-equals-default)
};
inline void happens_before(void*) {}
inline void happens_after(void*) {}

#endif

}  // namespace troupe::tests::fake
