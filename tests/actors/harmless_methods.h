#pragma once
// The methods that the fixture calls to see that an actor answers (call_fixture.h).

#include "tests/actors/call_fixture.h"
#include "tests/actors/test_actors.h"

namespace troupe::tests {

template <>
inline constexpr auto kHarmlessMethod<Counter> = &Counter::get;
template <>
inline constexpr auto kHarmlessMethod<Sleeper> = &Sleeper::where;
template <>
inline constexpr auto kHarmlessMethod<Recorder> = &Recorder::count;

}  // namespace troupe::tests
