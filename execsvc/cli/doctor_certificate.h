#pragma once

#include "cli/doctor.h"

/* The CA file, and our own certificate with its key: readable, in form, in force, and fitting. */
void doctor_check_certificates(struct doctor *d);
