#pragma once
// std::chrono's durations, clocks and literals without its calendar and its output, which are a
// tenth of what including <troupe/cluster.h> took: <condition_variable> has times to wait for.

#include <condition_variable>
