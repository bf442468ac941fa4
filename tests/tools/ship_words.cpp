// The library that a shipped program needs.

extern "C" const char* shipped_words() { return "words of the library"; }
