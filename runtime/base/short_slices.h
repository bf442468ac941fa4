#pragma once
// Threads that answer each other on a machine where all processors are busy.

namespace troupe {

// Asks the system for short time slices for this thread, once; later calls cost nothing. It gets no
// more time, but its turn comes sooner: a thread that was just woken by another one on the same
// processor waits otherwise until a computing one has used its slice up, milliseconds for every
// hand-over. For threads that wake, or are woken, for each message. What the thread starts does not
// inherit it. Linux 6.12 or later; without effect on others, and on real-time threads.
void take_short_slices();

}  // namespace troupe
