"""The text that workloads are made of, written for this course: plain paragraphs and plain questions."""

CHAT_QUESTIONS = (
    "What is a good way to learn the names of new colleagues?",
    "Explain in two sentences why the sky is blue.",
    "I have rice, eggs and an onion. What can I cook in twenty minutes?",
    "Write a short, polite note that moves our meeting from Monday to Wednesday.",
    "What is the difference between a queue and a stack?",
    "Give me three reasons to walk to work, and one reason not to.",
    "How do I remove a stripped screw from a wooden shelf without ruining the wood?",
    "Summarise the plot of a detective story that has no detective in it.",
    "My tomato plants have yellow leaves at the bottom. What should I check first?",
    "Translate 'the train is late again' into French and into Spanish.",
    "What does it mean when a bicycle chain slips under load?",
    "Suggest a name for a small cafe beside a canal, and say why it fits.",
    "Why do planes leave white trails on some days and none on others?",
    "Write four lines of verse about a lighthouse in fog.",
    "How much water should I take on a six hour hike in summer?",
    "What is a percentile? Answer as if to a curious teenager.",
)

MANUAL = (
    "The harbour office keeps one logbook for each tide gauge. A gauge is read at the full hour, and the reading "
    "is written in centimetres above the zero mark painted on the east pier. When the lamp over the gauge is red,"
    " the reading is marked as doubtful and taken again ten minutes later.",
    "Boats shorter than twelve metres moor on the inner side of the breakwater, bow to the quay. Boats of twelve "
    "metres and more moor outside, and only between April and October. A boat that stays longer than three nights"
    " pays for the fourth night in advance, at the window beside the crane.",
    "The crane lifts four tonnes at most, and two tonnes when the wind is above force five. It is used by the "
    "crane driver alone. Whoever wants a boat lifted puts its weight, its length and the position of its slings "
    "on the yellow form, the evening before.",
    "Fuel is sold from eight to six. Nobody smokes within fifteen metres of the pump, and no engine runs while a "
    "tank is filled. Spilled fuel is covered with sand from the blue box at once and reported to the office, "
    "however little it is.",
    "The footbridge over the lock opens every half hour, and at once for the lifeboat. It does not open when the "
    "water outside stands more than forty centimetres above the water inside. Then a white flag is shown at the "
    "office, and boats wait at the outer pontoon.",
    "Lost things are kept for sixty days in the cupboard behind the door. After sixty days, ropes and fenders go "
    "to the sailing school, clothes to the charity shop, and keys into the tin on the shelf, where surprisingly "
    "many are found again by their owners in the second year.",
    "In a storm warning the office is staffed through the night. The person on duty checks all mooring lines at "
    "ten, at two and at six, doubles those that chafe, and telephones the owners whose boats have come loose. "
    "Nobody goes out on the breakwater alone while waves break over it.",
    "Visitors are welcome on the quay from sunrise to sunset. Dogs are kept on a lead. Children fish from the "
    "wooden steps and not from the stone wall, because the wall is slippery below the dark line, which is where "
    "the highest tide of an ordinary month ends.",
)
"""A handbook for a small harbour: the shared context of the RAG workload and the pages of the long document."""

MANUAL_QUESTIONS = (
    "When is a tide reading taken a second time?",
    "How heavy may a boat be for the crane on a windy day?",
    "What happens to a rope that nobody fetches?",
    "When does the footbridge stay closed, and how do boats learn of it?",
    "Where does a boat of fourteen metres moor in May?",
    "Who may use the crane, and what is asked of the owner?",
    "What must be done about a small spill of fuel?",
    "Why should children not fish from the wall?",
    "What does the person on duty do at two at night in a storm?",
    "When is a mooring paid for in advance?",
)
