/* ra_version: the version of the libraries and of all programs. The sonames, the versions of
 * symbols, pkg-config, CMake, the manual pages and --version all take it from these lines.
 *
 * A new patch keeps every program working; while the major version is 0, a new minor one need not.
 */
#ifndef RA_VERSION_H
#define RA_VERSION_H

/* The version of this header: major, minor, patch. */
#define RA_VERSION_MAJOR 0
#define RA_VERSION_MINOR 9
#define RA_VERSION_PATCH 0
#define RA_VERSION "0.9.0"

#endif
