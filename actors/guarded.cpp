#include "actors/guarded.h"

#include <unistd.h>

#include <cstdio>

namespace troupe::detail {

void end_forked_child() {
  std::fputs(
      "troupe: a process that a method of an actor forked has returned from the method, and ends "
      "here: the actor is its parent. Let it exec a program, or end by exit()\n",
      stderr);
  ::_exit(1);
}

}  // namespace troupe::detail
