#pragma once

namespace troupe {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

}  // namespace troupe
