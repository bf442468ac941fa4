#pragma once
// Descriptors that a forked child does not get: there their numbers lead to /dev/null. Others learn
// from the end of a connection that a process has ended, and from a port that nobody listens there:
// a child that holds a copy would hide both. (A program that is executed gets none of them anyway:
// they are closed on exec.)

namespace troupe {

// Any thread. Until withhold_no_more(), which comes before the descriptor is closed.
void withhold_from_children(int fd);
void withhold_no_more(int fd);

}  // namespace troupe
