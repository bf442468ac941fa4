#pragma once
// A command of another program that is not done here, and what is to be done instead.

namespace troupe::tools {

struct NotHere {
  const char* command;
  const char* instead;
};

}  // namespace troupe::tools
