"""Loads the suite when it is imported: into the process that those of the tests are copies of."""

from tests.conformance import suite

suite.tests()
