"""The steps from one shape of the index to the next. A step that was released is never changed."""
