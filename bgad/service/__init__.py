"""The workbench: a service that scores, and a page to review, teach, compare and release."""
