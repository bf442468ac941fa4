#pragma once
// TROUPE_SEES_THREADS_ONLY: compiled for the thread sanitizer. The distribution's TBB is not
// instrumented: the sanitizer does not see how it hands out work, and takes every piece of it for a
// race. Threads of the standard library do the work then.

#if defined(__SANITIZE_THREAD__)
#define TROUPE_SEES_THREADS_ONLY
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TROUPE_SEES_THREADS_ONLY
#endif
#endif
