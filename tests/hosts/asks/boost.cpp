// boost::stacktrace built without libbacktrace and addr2line: it symbolizes through dladdr.
#include <boost/stacktrace.hpp>
#include <iostream>

extern "C" double ask(double x) {
    std::cerr << boost::stacktrace::stacktrace() << std::flush;
    return x;
}
