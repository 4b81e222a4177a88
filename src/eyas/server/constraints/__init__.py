"""The fields that constrain an output, converted to one grammar (`eyas.grammar`).

`fields` finds them in a request. `json_schema` reads schemas, `structural_tag` the formats of tags, and
`free_text` builds text that ends at markers.
"""
