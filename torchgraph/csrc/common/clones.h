// Vector code for the machine that it runs on: the loader picks one of several compiled forms.
// Only for functions that are no templates and that inline all that they call.
#pragma once

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(TG_ONE_CLONE)
#define TG_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TG_CLONES
#endif
