"""Words that topics.py makes prompts of. One line is one list; the words are ours."""


def _list(text):
    return [w.strip() for w in text.replace("\n", " ").split(",") if w.strip()]


ANIMALS = _list(
    """dog, cat, horse, cow, pig, sheep, goat, chicken, duck, goose, rabbit, mouse, rat, hamster, squirrel, fox, wolf,
    bear,
    deer, lion, tiger, elephant, giraffe, zebra, monkey, gorilla, panda, koala, kangaroo, penguin, owl, eagle, parrot,
    crow,
    pigeon, swan, robin, hummingbird, frog, toad, snake, lizard, turtle, tortoise, crocodile, shark, whale, dolphin,
    octopus,
    crab, lobster, jellyfish, starfish, seahorse, salmon, goldfish, bee, ant, butterfly, spider, beetle, ladybug,
    mosquito,
    snail, worm, bat, hedgehog, beaver, otter, seal, camel, donkey, moose, raccoon, skunk, cheetah, leopard, hippo,
    rhino,
    ostrich, peacock, flamingo, firefly, dragonfly, grasshopper"""
)
FOODS = _list(
    """bread, butter, cheese, milk, yogurt, rice, pasta, soup, salad, pizza, a sandwich, a burger, an omelet, pancakes,
    an apple pie,
    cake, cookies, chocolate, ice cream, honey, jam, tea, coffee, lemonade, orange juice, a smoothie, popcorn,
    potatoes, carrots,
    tomatoes, onions, beans, corn, mushrooms, peas, spinach, pumpkin soup, an apple, a banana, a lemon, grapes,
    strawberries,
    a watermelon, a peach, nuts, eggs, fish, chicken soup, noodles, tacos, sushi, curry, oatmeal, a fruit salad,
    mashed potatoes,
    tomato sauce, garlic, salt, sugar, cinnamon, vanilla, olive oil"""
)
NATURE = _list(
    """the sun, the moon, the sky, a star, a planet, the earth, Mars, Jupiter, Saturn, the Milky Way, a comet,
    an eclipse, gravity, light,
    sound, heat, electricity, magnetism, energy, water, ice, steam, air, oxygen, fire, rain, snow, hail, wind, a storm,
    thunder,
    lightning, a rainbow, fog, a cloud, a tornado, a hurricane, a flood, an earthquake, a volcano, a mountain, a hill,
    a valley, a river,
    a lake, the ocean, a wave, the tide, an island, a beach, a desert, a forest, a jungle, a swamp, a cave, a glacier,
    a waterfall, soil, sand,
    a rock, a mineral, gold, iron, salt water, a tree, a leaf, a root, a seed, a flower, a rose, a sunflower, grass,
    moss, a cactus, a mushroom,
    the food chain, photosynthesis, evolution, a fossil, a dinosaur, the seasons, spring, summer, autumn, winter,
    the weather, climate, the water cycle,
    recycling, pollution, a shadow, a mirror, an atom, a cell, a germ, a virus, a vaccine, time, a year,
    a day and night"""
)
BODY = _list(
    """the heart, the brain, the lungs, the stomach, the skin, the eyes, the ears, the nose, the tongue, the teeth,
    the bones, the muscles,
    blood, hair, sleep, a dream, a cold, a fever, a headache, a cough, exercise, a healthy diet, vitamins, hunger,
    thirst, pain, memory,
    breathing, sneezing, yawning, laughing, crying, growing up, stretching, washing your hands, brushing your teeth"""
)
OBJECTS = _list(
    """a chair, a table, a bed, a lamp, a clock, a mirror, a window, a door, a key, a lock, a hammer, a saw, a nail,
    a screwdriver, a ladder, a rope,
    a bucket, a broom, a spoon, a fork, a knife, a cup, a plate, a pot, an oven, a fridge, a toaster, a kettle,
    a candle, a blanket, a pillow,
    a book, a pencil, a pen, paper, scissors, glue, a ruler, a map, a compass, a camera, a phone, a computer,
    a keyboard, a printer, a radio, a television,
    a robot, a calculator, a battery, a light bulb, a wheel, a bicycle, a car, a bus, a train, a boat, a ship,
    an airplane, a helicopter, a rocket,
    a bridge, a tunnel, a road, a traffic light, a tent, a backpack, an umbrella, a coat, a hat, gloves, shoes, socks,
    glasses, a watch, a ring, a ball,
    a kite, a puzzle, a doll, a piano, a guitar, a drum, a violin, a flute, a telescope, a microscope, a magnet,
    a thermometer, a windmill, a wallet, a coin,
    a stamp, a letter, a newspaper, a dictionary, a calendar, a password, a website, the internet, an email,
    a computer program, a language model"""
)
JOBS = _list(
    """doctor, nurse, teacher, farmer, baker, cook, waiter, firefighter, police officer, pilot, sailor, bus driver,
    mechanic, builder, carpenter, plumber,
    electrician, painter, artist, writer, singer, dancer, actor, musician, photographer, scientist, engineer,
    programmer, librarian, dentist, vet,
    gardener, tailor, judge, lawyer, journalist, astronaut, fisherman, shopkeeper, banker, architect, coach, chef,
    astronomer, translator,
    mail carrier, park ranger, zookeeper, lifeguard, designer"""
)
ACTIVITIES = _list(
    """swimming, running, walking, hiking, cycling, dancing, singing, painting, drawing, reading, writing, cooking,
    baking, gardening, fishing, camping,
    sailing, skating, skiing, climbing, yoga, meditation, playing chess, playing soccer, playing basketball,
    playing tennis, playing the piano,
    playing the guitar, learning a language, learning to code, taking photos, bird watching, stargazing, knitting,
    sewing, juggling, volunteering,
    traveling, collecting stamps, telling stories, keeping a diary, solving puzzles, doing homework, helping others,
    saving money, sharing, listening,
    making friends, getting up early, drinking water"""
)
FEELINGS = _list(
    """happy, sad, angry, afraid, nervous, lonely, bored, tired, proud, jealous, shy, excited, confused, grateful,
    calm, worried, surprised, disappointed,
    guilty, hopeful, stressed, homesick, curious, embarrassed, frustrated, overwhelmed"""
)
IDEAS = _list(
    """friendship, honesty, kindness, courage, patience, trust, respect, freedom, peace, love, family, teamwork,
    responsibility, fairness, hope, luck, success,
    failure, a promise, a secret, a habit, a goal, a rule, a law, a vote, democracy, money, a bank, a budget, a tax,
    trade, a market, work, school, a library,
    a museum, a hospital, history, science, mathematics, art, music, poetry, a poem, a story, a novel, a language,
    grammar, a sentence, a verb, a noun,
    an adjective, a question, an opinion, a fact, a mistake, an idea, imagination, creativity, curiosity, learning,
    wisdom, beauty, justice, courtesy, a hero,
    a leader, a neighbor, a holiday, a birthday, a tradition, a culture, a sport, a game, a joke, a riddle, a proverb,
    an algorithm, data, privacy, artificial intelligence"""
)
PLACES = _list(
    """France, Japan, Italy, Egypt, Brazil, India, China, Canada, Mexico, Australia, Spain, Germany, Greece, Kenya,
    Norway, Iceland, Paris, London, Rome, Tokyo,
    New York, Cairo, Sydney, Venice, Berlin, Africa, Asia, Europe, South America, Antarctica, the Amazon, the Sahara,
    the Alps, the Nile, the Pacific Ocean,
    the Great Wall of China, the Eiffel Tower, the pyramids"""
)
SPOTS = _list(
    """the park, the beach, the zoo, the library, the museum, the market, the farm, the forest, the mountains,
    the lake, the city, the school, the hospital,
    the airport, the train station, the bakery, the garden, the playground, the cinema, the swimming pool,
    the supermarket, the castle"""
)
TASKS = _list(
    """make a cup of tea, make coffee, boil an egg, cook rice, cook pasta, bake bread, bake a cake, make a sandwich,
    make a salad, make soup, make pancakes, wash the dishes,
    clean my room, do the laundry, iron a shirt, fold clothes, fix a flat tire, change a light bulb, paint a wall,
    hang a picture, plant a tree, plant seeds, grow tomatoes,
    water my plants, train a dog, take care of a cat, feed birds, build a birdhouse, build a sandcastle, fly a kite,
    ride a bike, learn to swim, learn to draw, learn English,
    learn a new language, learn the guitar, read faster, write a letter, write a poem, write a short story,
    write an email, write a thank you note, give a speech, study for a test,
    do my homework, remember names, save money, make a budget, plan a trip, pack a suitcase, plan a birthday party,
    choose a gift, wrap a gift, make a new friend, talk to a stranger,
    say sorry, help a sad friend, be a good friend, be a good listener, be more patient, be more confident,
    sleep better, wake up early, eat healthier, drink more water, get in shape,
    start running, stretch my back, stop being angry, stop worrying, relax after work, stay focused, stop wasting time,
    make a plan for the day, make a to-do list, keep a diary,
    find a hobby, find a job, prepare for an interview, work from home, protect my password, stay safe online,
    use a computer, take a good photo, save energy at home, recycle,
    stay warm in winter, stay cool in summer, treat a small cut, treat a cold, brush my teeth, cross the street safely,
    read a map, find north, build a fire, set up a tent,
    play chess, play hide and seek, solve a puzzle, tell a good joke, cheer up a friend, thank my teacher,
    help my parents, welcome a new neighbor, organize my desk, care for a garden"""
)
HEROES = _list(
    """a little girl, a little boy, an old man, an old woman, a farmer, a baker, a king, a queen, a princess,
    a young prince, a knight, a wizard, a witch, a fairy, a giant, a dragon,
    a robot, a sailor, a pirate, a fisherman, a teacher, a painter, a musician, a gardener, a shepherd, a clockmaker,
    a dog, a cat, a rabbit, a fox, a bear, a mouse, a bird, an owl, a frog,
    a turtle, a squirrel, a horse, a lion, an elephant, a penguin, a whale, a bee, an ant, a butterfly, a snail,
    a cloud, a star, a tree, a snowman, a toy, a small boat, two friends,
    two sisters, two brothers, a family, a lost puppy, a hungry wolf, a young inventor, an astronaut, a magician,
    a ghost, a monkey, a duck, a hedgehog, a little train, a kitten"""
)
TRAITS = _list(
    """brave, shy, kind, lazy, clever, curious, lonely, happy, sad, tiny, proud, forgetful, honest, funny, quiet,
    stubborn, gentle, clumsy, hungry, sleepy, wise, young, greedy, cheerful,
    nervous, hopeful, grumpy, generous, playful, patient"""
)
EVENTS = _list(
    """who finds a hidden door, who gets lost in the forest, who wants to fly, who learns to share,
    who loses a favorite toy, who makes a new friend, who is afraid of the dark,
    who helps a stranger, who finds a treasure, who tells a lie, who wants to see the sea, who plants a magic seed,
    who saves the village, who cannot sleep, who wins a race,
    who loses a race, who builds a boat, who breaks a window, who finds an old map, who meets a talking animal,
    who learns to swim, who learns to say sorry, who bakes a cake,
    who goes to the moon, who waits for the rain, who hears a strange sound, who keeps a promise,
    who wakes up in winter, who opens a small shop, who paints the sky,
    who finds a key, who goes on a long trip, who makes a mistake, who wants to be bigger, who gives away a gift,
    who hides in a box, who climbs a mountain, who follows a light,
    who gets a letter, who has a strange dream, who asks too many questions, who learns to be patient, who misses home,
    who fixes an old clock, who sings for the first time"""
)
SETTINGS = _list(
    """in a small village, in a big city, in the forest, by the sea, on a farm, on an island, in a castle,
    in the mountains, at school, in a garden, on a ship, in the desert, in the snow,
    in space, under the sea, at night, on a rainy day, in spring, on a train, in a library, in a market, in a cave,
    near a river, in an old house, in a bakery"""
)
NAMES = _list(
    """Anna, Ben, Clara, David, Ella, Finn, Grace, Henry, Ivy, Jack, Kate, Leo, Mia, Noah, Olive, Paul, Rosa, Sam,
    Tina, Tom, Uma, Victor, Wendy, Max, Zoe, Lily, Lucy, Oscar, Emma, Maya,
    Amir, Chen, Diego, Fatima, Hana, Ravi, Sofia, Yuki, Omar, Nina"""
)
